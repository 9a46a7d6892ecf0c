package keeper

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/share"
)

// A writer that goes on using what it has put is a reader of it, with the memory mapped
// read-only.
func TestPutAndKeep(t *testing.T) {
	_, c, dev := kept(t)
	k := ok(c.Put(soon(t), Put{Name: "x", Parts: 2, Keep: true}, part(0, dev, 5), part(1, dev, 6)))(t)
	require.Equal(t, uint64(1), k.Version)
	require.Len(t, k.Parts, 2)
	for i, a := range k.Parts {
		requireBytes(t, a, byte(5+i))
		require.Equal(t, cu.ReadOnly, a.Buffer().Access())
		require.Equal(t, k.Digests[i], a.Data.Digest)
	}
	info := eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 2 })
	require.Equal(t, cu.ReadOnly, info.Holders[0].Access)
	letGoOf(t, k.Parts)
	eventually(t, c, "x", func(i api.Info) bool { return len(i.Holders) == 0 })
}

// It waits for the writers of the other parts, and not longer than its context.
func TestPutAndKeepWaitsForTheOthers(t *testing.T) {
	_, c, dev := kept(t)
	tx := Put{Name: "x", Parts: 2, Transaction: "tx", Keep: true}
	ctx, cancel := context.WithCancel(soon(t))
	first := make(chan error, 1)
	var k Kept
	go func() {
		var err error
		k, err = c.Put(ctx, tx, part(0, dev, 5))
		first <- err
	}()
	other := dialled(t, c.socket)
	eventuallyPending(t, other, "x")
	late := tx
	late.Keep = false
	require.NoError(t, errOf(other.Put(soon(t), late, part(1, dev, 6))))
	require.NoError(t, <-first)
	require.Equal(t, uint64(1), k.Version)
	require.Zero(t, k.Missing)
	requireBytes(t, k.Parts[0], 5)
	letGoOf(t, k.Parts)

	tx.Transaction = "another"
	go func() {
		var err error
		k, err = c.Put(ctx, tx, part(0, dev, 5))
		first <- err
	}()
	eventuallyPending(t, other, "x")
	cancel()
	require.ErrorIs(t, <-first, context.Canceled)
	require.Empty(t, k.Parts)
}

// eventuallyPending waits until a part of a name has come, and not all.
func eventuallyPending(t testing.TB, c *Client, name string) {
	t.Helper()
	require.Eventually(t, func() bool {
		info, err := c.Stat(soon(t), name)
		return err == nil && len(info.Pending) == 1 && info.Pending[0].Delivered == 1
	}, waitLong, waitStep)
}

// Somebody commits another version before the writer has attached to its own.
func TestPutAndKeepSuperseded(t *testing.T) {
	_, c, dev := kept(t)
	other := dialled(t, c.socket)
	w := &writer{client: c, put: Put{Name: "x", Parts: 1}}
	put(t, c, dev, "x", 1)
	put(t, other, dev, "x", 2)
	kept := Kept{Version: 1}
	err := w.keep(soon(t), []Part{part(0, dev, 1)}, &kept)
	require.ErrorIs(t, err, ErrNewerVersion)
	require.Empty(t, kept.Parts)
	require.NoError(t, c.Remove(soon(t), "x"))
	err = w.keep(soon(t), []Part{part(0, dev, 1)}, &kept)
	require.ErrorIs(t, err, share.ErrRefused)
	require.NoError(t, errOf(other.Put(soon(t), Put{Name: "x", Parts: 2}, part(0, dev, 1), part(1, dev, 2))))
	err = w.keep(soon(t), []Part{part(0, dev, 1)}, &kept)
	require.True(t, errors.Is(err, ErrNewerVersion) && errors.Is(err, share.ErrRefused), err)
}
