// Producer fills a buffer of device memory and offers it to consumers over a Unix
// socket, as file descriptors or, with --handle legacy, by a handle of legacy IPC.
//
//	producer --size 64MiB --consumers 2
//
// It ends when as many consumers as asked for have verified the data, or is
// ended by SIGINT, SIGTERM or SIGHUP. Run it with -h for its flags and exit codes.
package main
