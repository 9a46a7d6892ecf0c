// Package cli holds what the commands, gpufd doctor and the benchmarks have in common: exit codes,
// sizes, the default socket, the choice of a driver, and kernels for the demo's data.
package cli
