// Producer fills a buffer of device memory and offers it to consumers over a Unix
// socket, as file descriptors or, with --handle legacy, with a legacy IPC handle.
//
//	producer --size 64MiB --consumers 2
//
// It ends when --consumers of them have verified the data, or on SIGINT, SIGTERM or
// SIGHUP. Run it with -h for its flags and exit codes.
package main
