// Ring lets several processes, one per GPU or more, work on one another's memory. It
// is NVIDIA's sample memMapIPCDrv as a program that can fail.
//
//	ring --procs 8 --size 4MiB
//
// It creates a chunk of device memory for each process and passes all chunks to all
// processes as file descriptors. Each process maps them into one range of addresses
// and fills another chunk in every step, with a barrier between the steps. In the end
// each checks its own chunk. Run it with -h for its flags and exit codes.
package main
