// Package weights reads the weights that a trainer hands over after each step, on the same GPU and without a copy between
// processes. The trainer publishes them from Python (gpufd.weights.Publisher).
//
//	for u, err := range weights.Follow(ctx, "policy", c, nil) { // c is a cu.Context
//		if err != nil {
//			return err
//		}
//		for t, err := range u.Tensors(ctx) {
//			if err != nil {
//				break
//			}
//			load(t.Name, t.Ptr, t.Size, t.From) // and wait until that is done
//		}
//		usable = u.Err() == nil // else use no weights before another update is whole
//	}
//
// An update comes in buckets, which are slots of a channel (package channel) that the reader gives back in any order. Nobody
// knows before its end whether an update is whole. So a body loads tensors as they come, and learns at the end of the loop over
// them whether it has the weights of one step or of two: [Update.Err]. [ErrTorn] names the step.
//
// # What stays how long
//
// A tensor is the publisher's memory. It is there for one turn of the loop over [Update.Tensors]; [Tensor.Hold] keeps it until
// [Tensor.Release], or until the turn of Follow's loop is over. Work on the device that reads it has to have ended
// by then. While a bucket is kept the publisher has one less, and waits when it has none. A body that keeps tensors while the device
// loads them, and others come meanwhile, waits for one of its own loads before it goes on: Tensors does not wait for Release.
//
// Weights in place are a channel of one slot, whose bytes are the weights. Keep the tensors, compute on them, and return to Follow's
// loop after [Update.AwaitWanted]: the publisher writes the next step only then.
//
// # What a publisher can do
//
// Each frame is checked before anything of it is taken. A publisher that breaks the format gets no further ([ErrFormat]). One that
// writes to a bucket that it has published can change what is being read, as with all shared memory: it is the user's own
// process (package share says who is admitted).
package weights
