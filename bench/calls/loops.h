// The calls as a program in C makes them, in a loop that nothing disturbs, and
// one at a time for Go to cross into by cgo.

#ifndef LOOPS_H
#define LOOPS_H

#include <stdint.h>
#include <time.h>

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// REPEAT makes a call n times and returns the nanoseconds that all took, with
// what `after` does, or the first result that is no success as a negative
// number.
#define REPEAT(call, after)                    \
	int64_t begin = now();                 \
	for (int i = 0; i < n; i++) {          \
		int result = (call);           \
		if (result != 0)               \
			return -(int64_t)result; \
	}                                      \
	int result = (after);                  \
	return result != 0 ? -(int64_t)result : now() - begin

// CALL defines two functions: NAME makes one call of the function at the address fn
// with those arguments, and NAME_loop makes n. Handles are as wide as pointers.
#define CALL(name, arguments, ...)                                                    \
	static inline int name(uintptr_t fn, __VA_ARGS__) {                           \
		return ((int (*)(__VA_ARGS__))fn)arguments;                           \
	}                                                                             \
	static int64_t name##_loop(int n, uintptr_t fn, __VA_ARGS__) {                \
		int (*f)(__VA_ARGS__) = (int (*)(__VA_ARGS__))fn;                     \
		REPEAT(f arguments, 0);                                               \
	}

CALL(ctx_set_current, (ctx), uintptr_t ctx)
CALL(ctx_get_current, (ctx), uintptr_t *ctx)
CALL(device_get_attribute, (value, attribute, device), int *value, int attribute, int device)
CALL(pointer_get_attribute, (data, attribute, p), void *data, int attribute, uint64_t p)
CALL(stream_query, (stream), uintptr_t stream)
CALL(stream_synchronize, (stream), uintptr_t stream)
CALL(stream_write_value, (stream, p, value, flags), uintptr_t stream, uint64_t p, uint32_t value, unsigned flags)
CALL(event_record, (event, stream), uintptr_t event, uintptr_t stream)
CALL(event_query, (event), uintptr_t event)
CALL(event_synchronize, (event), uintptr_t event)
CALL(memset_8, (p, value, n_bytes, stream), uint64_t p, unsigned char value, size_t n_bytes, uintptr_t stream)
CALL(copy_to_device, (p, host, n_bytes, stream), uint64_t p, const void *host, size_t n_bytes, uintptr_t stream)
CALL(copy_to_host, (host, p, n_bytes, stream), void *host, uint64_t p, size_t n_bytes, uintptr_t stream)
CALL(copy_device, (to, from, n_bytes, stream), uint64_t to, uint64_t from, size_t n_bytes, uintptr_t stream)
CALL(launch, (kernel, gx, gy, gz, bx, by, bz, shared, stream, params, extra),
     uintptr_t kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
     unsigned shared, uintptr_t stream, void **params, void **extra)

// record_and_wait_loop records an event and waits for it, n times.
static int64_t record_and_wait_loop(int n, uintptr_t record, uintptr_t wait, uintptr_t event, uintptr_t stream) {
	int r;
	REPEAT((r = event_record(record, event, stream)) != 0 ? r : event_synchronize(wait, event), 0);
}

// launch_empty launches a kernel without parameters in one thread.
static inline int launch_empty(uintptr_t fn, uintptr_t kernel, uintptr_t stream) {
	return launch(fn, kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0);
}

// launch_and_wait_loop launches and waits for the stream, n times.
static int64_t launch_and_wait_loop(int n, uintptr_t fn, uintptr_t wait, uintptr_t kernel, uintptr_t stream) {
	int r;
	REPEAT((r = launch_empty(fn, kernel, stream)) != 0 ? r : stream_synchronize(wait, stream), 0);
}

// launch_then_wait_loop launches n times and then waits for the stream.
static int64_t launch_then_wait_loop(int n, uintptr_t fn, uintptr_t wait, uintptr_t kernel, uintptr_t stream) {
	REPEAT(launch_empty(fn, kernel, stream), stream_synchronize(wait, stream));
}

#endif
