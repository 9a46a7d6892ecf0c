// Ring has several processes, one per GPU or more, work on one another's memory:
// NVIDIA's sample memMapIPCDrv, as a program that can fail.
//
//	ring --procs 8 --size 4MiB
//
// It creates a chunk of device memory for each process and passes all of them to
// all processes as file descriptors. Each maps them into one range of addresses,
// and fills another chunk in every step, with a barrier between the steps; in the
// end each checks its own. Run it with -h for its flags and exit codes.
package main
