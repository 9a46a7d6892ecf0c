// Package ptx reads PTX, the text that nvcc makes of CUDA C, and runs it on the
// CPU: slowly, and with every access to memory checked. It knows nothing of
// drivers; package soft launches with it.
//
//	m, err := ptx.Parse(text)                // errors name the line
//	err = m.Run(ctx, "vector_add", ptx.Launch{Grid: …, Block: …, Params: …, Memory: …})
//
// An instruction that is not known is refused by Parse, by name and line, and
// never skipped; so is an operand of the wrong type. What is known is the table in
// table.go: an instruction more is a row more.
//
// Threads of a block take turns: each runs to its next barrier or its end, or
// until it has run for a while, so that one which spins does not starve the one it
// waits for. Blocks run on several cores, and take turns likewise. Nothing
// is rounded twice or reordered, and fused only where PTX leaves that open and the
// GPU's assembler does it: results are those of the GPU to the bit, NaNs included, but
// where PTX itself says "approximate" or leaves them open, and for what docs/ptx.md says
// of products and sums. testdata/h200.txt holds what an H200 makes of every form.
//
// It is stricter than a GPU: an access one byte past a block's shared memory or a
// thread's stack is a fault, and threads that can only wait for each other end
// with one, where the GPU would hang.
package ptx
