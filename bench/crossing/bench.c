//go:build cgo

#include "bench.h"

static uintptr_t current;

__attribute__((noinline)) int bench_set_current(uintptr_t ctx) {
	current = ctx;
	return 0;
}

__attribute__((noinline)) int bench_f4(uintptr_t stream, uint64_t addr, uint64_t value, unsigned flags) {
	return stream + 2 * addr + 3 * value + 4 * flags;
}

__attribute__((noinline)) int bench_f11(uintptr_t f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                        unsigned bz, unsigned shared, uintptr_t stream, uintptr_t params, uintptr_t extra) {
	return f + 2 * gx + 3 * gy + 4 * gz + 5 * bx + 6 * by + 7 * bz + 8 * shared + 9 * stream + 10 * (params != 0) +
	       11 * (extra != 0);
}

uintptr_t bench_current(void) { return current; }
