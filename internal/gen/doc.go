// Gen writes the generated half of the binding from the ABI file:
//
//	go run ./internal/gen -abi abi/cuda-13.0.json -out .
//
// It reads facts only (names, values, offsets, prototypes) and writes
// cu/sys/z*.go (types, enums, structs, constants, one method per driver
// function) and cu/zerrors.go (one sentinel per CUresult). The output depends
// on nothing but its input, so `make check` regenerates and compares.
//
// The ABI's rules live here once: which `void *` is memory and which is an
// opaque value, which parameters travel by value, how a C type is spelled in
// Go. Everything downstream follows.
package main
