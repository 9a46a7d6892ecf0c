package server

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// The zero Want is all parts, and a part that is named is that alone, the first one too.
func TestWantOfParts(t *testing.T) {
	_, c, dev := kept(t)
	_, err := c.Put(soon(t), keeper.Put{Name: "w", Parts: 2}, part(0, dev, 1), part(1, dev, 2))
	require.NoError(t, err)
	for _, want := range []struct {
		part  *int
		fills []byte
	}{{nil, []byte{1, 2}}, {new(0), []byte{1}}, {new(1), []byte{2}}} {
		all := ok(keeper.Attach(soon(t), dev.Driver(), c.Client, "w", keeper.Want{Part: want.part}))(t)
		require.Len(t, all, len(want.fills))
		for i, a := range all {
			requireBytes(t, a, want.fills[i])
		}
		letGoOf(t, all)
	}
	for _, none := range []int{-1, 2} {
		_, err = keeper.Attach(soon(t), dev.Driver(), c.Client, "w", keeper.Want{Part: &none})
		requireCode(t, "not-found", err)
	}
}

// A reader that asks for the name alone is told of the parts, and does not wait for what is not to come:
// neither one that comes, nor one that had the version before, which was in one part.
func TestNameWithPartsIsNotWaitedFor(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "w", 1)
	last := error(nil)
	for att, err := range share.Follow(soon(t), s.opts.Socket, "w", dev, nil) {
		if last = err; err != nil {
			break
		}
		require.NoError(t, errOf(c.Put(soon(t), keeper.Put{Name: "w", Parts: 2}, part(0, dev, 1), part(1, dev, 2))))
		<-att.Context().Done()
	}
	requireParts(t, last)
	_, err := share.Attach(soon(t), s.opts.Socket, "w", dev, nil)
	requireParts(t, err)

	_, err = share.Attach(soon(t), s.opts.Socket, "w/2", dev, nil)
	require.ErrorIs(t, err, share.ErrNotFound, "what the name does not have may come")
}

func requireParts(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, share.ErrParts)
	require.ErrorContains(t, err, "w has parts w/0, w/1")
}

// A Part.Write that panics leaves no memory, no context and nothing booked: the suite's leak check is
// this test's, too.
func TestPutThatPanics(t *testing.T) {
	_, c, dev := kept(t)
	bad := part(1, dev, 2)
	bad.Write = func(context.Context, *vmm.Buffer) error { panic("the file is nonsense") }
	require.PanicsWithValue(t, "the file is nonsense", func() {
		_, _ = c.Put(soon(t), keeper.Put{Name: "w", Parts: 2}, part(0, dev, 1), bad)
	})
	info, err := c.Stat(soon(t), "w")
	if err == nil {
		require.Empty(t, info.Pending)
		require.Zero(t, info.ReservedBytes)
	} else {
		requireCode(t, "not-found", err)
	}
	put(t, c, dev, "w", 3)
}

// The layout that a writer declares is told to readers, and shown.
func TestLayoutIsTold(t *testing.T) {
	_, c, dev := kept(t)
	p := part(0, dev, 1)
	p.Layout = "gpufd-l1:0123456789abcdef0123456789abcdef"
	require.NoError(t, errOf(c.Put(soon(t), keeper.Put{Name: "x"}, p)))
	require.Equal(t, p.Layout, attach(t, c, dev, "x")[0].Data.Layout)
	require.Equal(t, p.Layout, stat(t, c, "x").Parts[0].Layout)
	p.Layout = "gpufd-l1:1"
	requireCode(t, "bad-request", errOf(c.Put(soon(t), keeper.Put{Name: "x"}, p)))
}
