// Consumer attaches to the device memory that a producer offers, and verifies
// the data in it.
//
//	consumer --socket /run/user/1000/gpufd/producer.sock
//
// It maps the memory without a copy, compares it on the GPU, or with --verify cpu
// piece by piece on the host, and tells the producer what it found. Run it with -h
// for its flags and exit codes.
package main
