package main

const text = `
What it costs to call a C function that does next to nothing, in each of the ways that a Go program has.
All ways call the same functions in one process, one way after the other, and each round begins with another way.
` + functionsText + `
- **ours** is package cu/sys. With a context, cuCtxSetCurrent is called in the same crossing.
- **purego.SyscallN** and **purego.RegisterFunc** are the dependency's own ways, untyped and typed.
` + cgoText + `
The arguments are those of cuStreamWriteValue64 (4) and cuLaunchKernel (11).

Allocations are whole ones per call, the most of any round.
`
