// Consumer attaches to the device memory that a producer offers, and verifies
// what is in it.
//
//	consumer --socket /run/user/1000/gpufd/producer.sock
//
// It maps the memory where it is, without a copy, compares it there, or with
// --verify cpu on the host, piece by piece, and tells the producer what it found.
// Run it with -h for its flags and exit codes.
package main
