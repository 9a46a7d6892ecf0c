// Package tests holds the black-box tests of the programs: producer, consumer,
// launch and ring as real processes, over real sockets, on the driver that
// GPUFD_DRIVER chooses (soft, which is the default, or cuda).
//
// The programs are taken from the directory GPUFD_BIN, or built once per run.
// The names of tests say which fault of docs/faults.md (TestFault48_…) or which
// invariant of docs/architecture.md they defend.
package tests
