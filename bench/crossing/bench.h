// The C functions that all ways call. They are as cheap as a function can be, so
// that what is measured is the way there and back, and tell with their result
// whether every argument arrived. bench.c is compiled on its own, so no caller
// can have one inlined.
#include <stdint.h>

// As cuCtxSetCurrent.
int bench_set_current(uintptr_t ctx);

// Four, as cuStreamWriteValue64. Returns 1*stream + 2*addr + 3*value + 4*flags.
int bench_f4(uintptr_t stream, uint64_t addr, uint64_t value, unsigned flags);

// Eleven, as cuLaunchKernel. Returns the sum of the arguments, each times its
// number; the two pointers are numbers here, so that cgo need not check them,
// and count as 1 if they are not null.
int bench_f11(uintptr_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
              unsigned shared, uintptr_t stream, uintptr_t params, uintptr_t extra);

// What bench_set_current got last.
uintptr_t bench_current(void);
