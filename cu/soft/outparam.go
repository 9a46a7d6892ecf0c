package soft

import "github.com/gpufd/gpufd/cu/sys"

// set stores v where a caller wants a result, unless r is an error already. A
// null pointer is CUDA_ERROR_INVALID_VALUE.
func set[T any](r sys.CUresult, out *T, v T) sys.CUresult {
	if r != sys.CUDA_SUCCESS {
		return r
	}
	if out == nil {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	*out = v
	return sys.CUDA_SUCCESS
}

// with calls f with the object that lock returns for a handle, or returns its error, and unlocks
// the machine.
func with[H, O any](m *machine, lock func(H) (O, sys.CUresult), h H, f func(O) sys.CUresult) sys.CUresult {
	o, r := lock(h)
	defer m.mu.Unlock()
	if r != sys.CUDA_SUCCESS {
		return r
	}
	return f(o)
}

// withContext is with for the current context.
func withContext(m *machine, lock func() (*context, sys.CUresult), f func(*context) sys.CUresult) sys.CUresult {
	return with(m, func(struct{}) (*context, sys.CUresult) { return lock() }, struct{}{}, f)
}

// value stores the result of get for the object that lock returns for a handle.
func value[H, O, T any](m *machine, lock func(H) (O, sys.CUresult), h H, out *T, get func(O) T) sys.CUresult {
	return with(m, lock, h, func(o O) sys.CUresult { return set(sys.CUDA_SUCCESS, out, get(o)) })
}

// setOptional is set for a pointer that may be null.
func setOptional[T any](r sys.CUresult, out *T, v T) {
	if r == sys.CUDA_SUCCESS && out != nil {
		*out = v
	}
}

// setString stores s, cut to fit, as a C string in a buffer of size bytes.
func setString(r sys.CUresult, buf *byte, size int32, s string) sys.CUresult {
	if r != sys.CUDA_SUCCESS {
		return r
	}
	if buf == nil || size <= 0 {
		return sys.CUDA_ERROR_INVALID_VALUE
	}
	b := sliceOf(buf, uintptr(size))
	n := copy(b[:size-1], s)
	b[n] = 0
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
