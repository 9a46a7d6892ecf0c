package weights

import "github.com/gpufd/gpufd/cu"

// A Tensor is a tensor of an update, or a piece of one, in the publisher's memory. Its bytes are there until the turn of the loop
// over [Update.Tensors] is over, or, after Hold, until Release. They lie dense, and are read-only. Work of the device that reads
// them has to have ended by then.
type Tensor struct {
	Meta
	Ptr   cu.DevicePtr // of the first byte that is here
	Size  uint64       // bytes that are here
	From  uint64       // byte of the tensor with which they begin
	Total uint64       // bytes of the whole tensor; more than Size for a piece

	bucket *heldBucket
	index  int // in the bucket
}

// Hold keeps the bytes until [Tensor.Release], or until the body of [Follow]'s loop returns. While a tensor of a bucket is
// kept, the publisher cannot use that bucket. Hold again does nothing.
//
// Errors: [channel.ErrClosed] if the bucket has gone back.
func (t Tensor) Hold() error {
	if t.bucket == nil {
		return errGone
	}
	return t.bucket.hold(t.index)
}

// Release gives back what Hold has kept. Release again does nothing. Any goroutine may call it, also while another one waits in the
// loop over [Update.Tensors].
//
// Errors: [channel.ErrDropped] if the publisher may have used the bucket before.
func (t Tensor) Release() error {
	if t.bucket == nil {
		return nil
	}
	return t.bucket.release(t.index)
}
