// Package ptx reads PTX, the text that nvcc makes of CUDA C, and runs it on the
// CPU: slowly, and with every access to memory checked. It knows nothing of
// drivers; package soft launches with it.
//
//	m, err := ptx.Parse(text)                // errors name the line
//	k, err := m.Kernel("vector_add")
//	err = k.Launch(ptx.Launch{Grid: …, Block: …, Params: …, Memory: …})
//
// An instruction that is not known is refused by Parse, by name and line, and
// never skipped. docs/ptx.md lists what is known.
//
// Threads of a block take turns: each runs to its next barrier or its end, or
// until it has run for a while, so that one which spins does not starve the one it
// waits for. Blocks run on several cores, and take turns likewise. Nothing
// is fused, rounded twice or reordered that PTX does not fuse or round: results
// are those of the GPU to the bit, but where PTX itself says "approximate".
package ptx
