// Package handoff tests producer and consumer as processes, over real sockets, on the driver that
// GPUFD_DRIVER names (soft by default, or cuda). Names of tests have the number of the fault of
// docs/faults.md that they show, such as TestFault48_StaleSocket.
package handoff
