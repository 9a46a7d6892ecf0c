package soft

import (
	"runtime"
	"strings"

	"github.com/gpufd/gpufd/cu/sys"
)

// set stores v where a caller wants a result. A null pointer is
// CUDA_ERROR_INVALID_VALUE.
func set[T any](out *T, v T) sys.CUresult {
	if out == nil {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	*out = v
	return sys.CUDA_SUCCESS
}

// with calls f with the object that find returns for a handle, or returns its
// error. The machine is locked for both.
func with[H, O any](m *machine, find func(H) (O, sys.CUresult), h H, f func(O) sys.CUresult) sys.CUresult {
	m.mu.Lock()
	defer m.mu.Unlock()
	o, r := find(h)
	if r != sys.CUDA_SUCCESS {
		return r
	}
	return f(o)
}

// withContext is with for the current context.
func withContext(m *machine, find func() (*context, sys.CUresult), f func(*context) sys.CUresult) sys.CUresult {
	return with(m, func(struct{}) (*context, sys.CUresult) { return find() }, struct{}{}, f)
}

// locked is with for a call that needs cuInit only.
func (m *machine) locked(f func() sys.CUresult) sys.CUresult {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return r
	}
	return f()
}

// find returns the object of a handle. The real driver crashes on a handle that
// never was, and may crash on a destroyed one; here the call returns dead.
func find[H ~uint64 | ~uintptr, O any](m *machine, objects map[H]*O, h H, kind uint64, what string, dead sys.CUresult) (*O, sys.CUresult) {
	if r := m.ready(); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	o := objects[h]
	switch {
	case o != nil:
		return o, sys.CUDA_SUCCESS
	case h == 0:
		return nil, dead
	case m.isA(kind, uint64(h)):
		return nil, m.misuse(dead, "%s: %s %#x used after it was destroyed", callName(), what, uint64(h))
	}
	return nil, m.misuse(dead, "%s: %#x is no %s", callName(), uint64(h), what)
}

// callName returns the name of the driver's function that runs.
func callName() string {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for f, more := frames.Next(); more; f, more = frames.Next() {
		if _, name, ok := strings.Cut(f.Function, ".(*machine).cu"); ok {
			name, _, _ = strings.Cut(name, ".") // of a closure
			return "cu" + name
		}
	}
	return "a call"
}

// withBoth is with for two objects.
func withBoth[H, I, O, P any](m *machine, first func(H) (O, sys.CUresult), h H, second func(I) (P, sys.CUresult), i I, f func(O, P) sys.CUresult) sys.CUresult {
	return with(m, first, h, func(o O) sys.CUresult {
		p, r := second(i)
		if r != sys.CUDA_SUCCESS {
			return r
		}
		return f(o, p)
	})
}

// value stores the result of get for the object that find returns for a handle.
func value[H, O, T any](m *machine, find func(H) (O, sys.CUresult), h H, out *T, get func(O) T) sys.CUresult {
	return with(m, find, h, func(o O) sys.CUresult { return set(out, get(o)) })
}

// setOptional is set for a pointer that may be null.
func setOptional[T any](out *T, v T) {
	if out != nil {
		*out = v
	}
}

// setString stores s, cut to fit, as a C string in a buffer of size bytes.
func setString(buf *byte, size int32, s string) sys.CUresult {
	if buf == nil || size <= 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	b := sliceOf(buf, uintptr(size))
	n := copy(b[:size-1], s)
	b[n] = 0
	return sys.CUDA_SUCCESS
}

// valid is the result for arguments that are, or are not.
func valid(ok bool) sys.CUresult {
	if !ok {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	return sys.CUDA_SUCCESS
}

// firstError returns the first result that is no success.
func firstError(results ...sys.CUresult) sys.CUresult {
	for _, r := range results {
		if r != sys.CUDA_SUCCESS {
			return r
		}
	}
	return sys.CUDA_SUCCESS
}
