package keeper

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/share"
)

// A keeper keeps the version of a reader that has detached. Reattached, it says which version was mapped.
func TestReattach(t *testing.T) {
	_, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	a := ok(Attach(soon(t), dev.Driver(), c, "x", Want{}))(t)[0]
	at := a.Ptr()
	require.True(t, ok(a.Detach(soon(t), 0))(t))
	put(t, c, dev, "x", 2)
	<-a.Superseded()
	for i, want := range []share.Which{share.Same, share.Newest} {
		next := ok(a.Reattach(soon(t), want))(t)
		require.Equal(t, uint64(i+1), next.Data.Version)
		require.Equal(t, at, next.Ptr())
		requireBytes(t, next, byte(i+1))
		if i == 0 {
			require.True(t, ok(next.Detach(soon(t), 0))(t))
		}
		a = next
	}
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 1 && len(i.Retired) == 0 })
	require.ErrorIs(t, errOf((*Attached)(nil).Reattach(soon(t), share.Same)), share.ErrClosed)
	require.ErrorContains(t, errOf(a.Reattach(soon(t), share.Same)), "reattaching to x")
	require.NoError(t, a.Close())
}
