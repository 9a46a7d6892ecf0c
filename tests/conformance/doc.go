// Package conformance asks a driver what docs/driver-facts.md says of it: each
// row there that can be asked from outside, and each documented result of
// cuMemMap. It runs unchanged on libcuda and on the software driver
// (GPUFD_DRIVER=cuda or soft), through the raw calls of cu/sys.
//
// The H200's answers are expected. If the software driver answers
// otherwise on purpose, the check has a name, and docs/driver-facts.md lists the
// name with both answers and the reason. The list is checked both ways.
//
// A run ends with a line that counts, to be compared between the drivers:
//
//	conformance: N checks (N skipped), N listed differences, driver soft
package conformance
