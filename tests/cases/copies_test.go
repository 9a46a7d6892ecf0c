package cases

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// rounds is how often a copy is made, so that some are under way while Close waits.
const rounds = 8

// Close of memory waits for copies from and to it, also those of another context.
func TestFault97_CloseUnderCopies(t *testing.T) {
	for name, far := range map[string]func(*testing.T, *cu.Device) *cu.Context{
		"of the context": nil,
		"to another context": func(t *testing.T, dev *cu.Device) *cu.Context {
			return untilEnd(t, ok(dev.NewContext(0))(t))
		},
		"to another device": func(t *testing.T, dev *cu.Device) *cu.Context {
			_, other := cutest.TwoDevices(t, dev.Driver())
			return cutest.Context(t, other)
		},
	} {
		for _, side := range []string{"source", "destination"} {
			t.Run(name+"/"+side, func(t *testing.T) {
				dev, ctx := device(t, 5*patience)
				to := ctx
				if far != nil {
					to = far(t, dev)
				}
				src := untilEnd(t, ok(newBuffer(ctx, "", nil))(t))
				dst := untilEnd(t, ok(to.Alloc(size))(t))
				require.NoError(t, cu.Fill(ctx, src.Ptr(), uint8(filler), size))
				s, k := newStream(t, ctx), held(t, ctx)
				require.NoError(t, k.run(s, k.memory))
				for range rounds {
					if far == nil {
						require.NoError(t, cu.CopyAsync(s, dst, src.Ptr(), size))
					} else {
						require.NoError(t, cu.CopyPeerAsync(s, dst, to, src.Ptr(), ctx, size))
					}
				}
				closes := map[string]memory{"source": src, "destination": dst}[side]
				waits(t, closes.Close, k.release)
				require.NoError(t, s.Synchronize(soon(t)))
				if side == "source" {
					ends := make([]byte, 2)
					require.NoError(t, cu.CopyToHost(to, ends[:1], dst))
					require.NoError(t, cu.CopyToHost(to, ends[1:], dst.Ptr().Add(size-1)))
					require.Equal(t, []byte{filler, filler}, ends)
				}
				requireAlive(t, ctx)
			})
		}
	}
}
