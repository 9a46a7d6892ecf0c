package gpumem

import "errors"

// These two errors have one value in all packages of gpufd, which give it their own names.
var (
	// ErrClosed says that something is nil, or was closed by this process. Other packages return
	// errors that match it and have a text of their own.
	ErrClosed = errors.New("gpumem: already closed")

	// ErrInUse says that memory cannot be freed: others are given it or hold it, or work that is
	// queued in a stream will use it.
	ErrInUse = errors.New("gpumem: the memory is in use")
)
