//go:build cgo

#include "bench.h"

__attribute__((noinline)) int bench_f4(uintptr_t stream, uint64_t addr, uint64_t value, unsigned flags) {
	return stream + 2 * addr + 3 * value + 4 * flags;
}
