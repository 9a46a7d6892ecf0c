// The C function that all ways call. It is as cheap as a function can be, so
// that what is measured is the way there and back, and tells with its result
// whether every argument arrived. bench.c is compiled on its own, so no caller
// can have it inlined.
#include <stdint.h>

// Four arguments, as cuStreamWriteValue64. Returns 1*stream + 2*addr + 3*value + 4*flags.
int bench_f4(uintptr_t stream, uint64_t addr, uint64_t value, unsigned flags);
