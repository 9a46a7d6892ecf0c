package weights

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gpufd/gpufd/channel"
)

// errGone says that a tensor's bytes are not there any more.
var errGone = fmt.Errorf("weights: the tensor's bucket was given back; hold a tensor in the turn that yields it: %w", channel.ErrClosed)

// A heldBucket is a bucket that this side has. It goes back when all of its tensors were given and none is held.
type heldBucket struct {
	r       *channel.Reader
	frame   channel.Frame
	entries []entry

	mu    sync.Mutex
	held  map[int]struct{} // tensors that Hold keeps
	given bool             // all tensors were
	back  bool             // the bucket was given back
	err   error            // its bytes may not have been whole until then
}

func (h *heldBucket) tensor(i int) Tensor {
	e := &h.entries[i]
	return Tensor{Meta: e.Meta, Ptr: h.frame.Ptr().Add(e.at), Size: e.size, From: e.from, Total: e.total, bucket: h, index: i}
}

func (h *heldBucket) hold(i int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.given && len(h.held) == 0 {
		return errGone
	}
	if h.held == nil {
		h.held = map[int]struct{}{}
	}
	h.held[i] = struct{}{}
	return nil
}

// release ends what hold began.
func (h *heldBucket) release(i int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, held := h.held[i]; !held {
		return nil
	}
	delete(h.held, i)
	return h.free()
}

// drop notes that all tensors were given. The error says that their bytes may not have been whole.
func (h *heldBucket) drop() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.given = true
	if len(h.held) > 0 {
		return h.r.Whole(h.frame)
	}
	return h.free()
}

// giveBack gives the bucket back, whoever holds tensors of it.
func (h *heldBucket) giveBack() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.given = true
	clear(h.held)
	return h.free()
}

// isBack reports whether the bucket was given back, with its bytes whole until then.
func (h *heldBucket) isBack() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.back && h.err == nil
}

// free gives the bucket back, if nothing keeps it, once. It runs with mu held.
func (h *heldBucket) free() error {
	if !h.given || len(h.held) > 0 || h.back {
		return h.err
	}
	err := h.r.Release(h.frame)
	if err == nil || errors.Is(err, channel.ErrDropped) {
		h.back, h.err = true, err
	}
	return err
}
