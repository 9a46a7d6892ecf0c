// Package ptx reads PTX, the text that nvcc makes of CUDA C, and runs it on the
// CPU: slowly, and with every access to memory checked. It knows nothing of
// drivers; package soft launches with it.
//
//	m, err := ptx.Parse(text)                // errors name the line
//	err = m.Run(ctx, "vector_add", ptx.Launch{Grid: …, Block: …, Params: …, Memory: …})
//
// Parse refuses an instruction that it does not know, by name and line, and an
// operand of the wrong type; it never skips one. It knows the instructions in the
// table of table.go: a new row there is a new instruction.
//
// Threads of a block take turns. Each runs to its next barrier or its end, or for
// a while, so that a spinning thread does not starve the one it waits for. Blocks
// run on several cores, and take turns likewise. Nothing is rounded twice or
// reordered, and fused only where PTX leaves that open and the GPU's assembler
// does it. Results are those of the GPU to the bit, NaNs included, except where
// PTX itself says "approximate" or leaves them open, and for what docs/ptx.md
// says of products and sums. testdata/h200.txt holds what an H200 makes of every
// form.
//
// It is stricter than a GPU: an access one byte past a block's shared memory or a
// thread's stack is a fault, and so are threads that can only wait for each
// other, where the GPU would hang.
package ptx
