package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

func TestPutAndAttach(t *testing.T) {
	_, c, dev := kept(t)
	p := part(0, dev, 7)
	p.Table = json.RawMessage(`{"x":"<&>"}`)
	k := ok(c.Put(soon(t), Put{Name: "llama", Labels: map[string]string{"dtype": "F16"}}, p))(t)
	require.Equal(t, uint64(1), k.Version)
	require.Len(t, k.Digests, 1)

	all := attach(t, c, dev, "llama")
	require.Len(t, all, 1)
	requireBytes(t, all[0], 7)
	require.Equal(t, api.Data{Name: "llama", Version: 1, Parts: 1, Labels: map[string]string{"dtype": "F16"}, Digest: k.Digests[0], Table: p.Table}, all[0].Data)
	require.NoError(t, cutest.Context(t, dev).Synchronize(soon(t)))

	info := eventually(t, c, "llama", func(i api.Info) bool { return len(i.Holders) == 1 })
	require.Equal(t, "ok", info.State)
	require.Equal(t, uint64(small), info.Bytes)
	require.Equal(t, map[string]string{"dtype": "F16"}, info.Labels)
	require.Equal(t, k.Digests[0], info.Parts[0].Digest)
	require.Equal(t, cu.ReadOnly, info.Holders[0].Access)
	require.NotEmpty(t, info.Parts[0].WritableBy, "its writer lives")
	letGoOf(t, all)
	eventually(t, c, "llama", func(i api.Info) bool { return len(i.Holders) == 0 })

	require.Equal(t, uint64(2), put(t, c, dev, "llama", 8).Version)
	names := ok(c.List(soon(t)))(t)
	require.Len(t, names, 1)
	st := ok(c.Status(soon(t)))(t)
	require.Equal(t, 1, st.Names)
	require.NotEqual(t, st.PID, st.Store)
}

// Readers do not wait until a writer has released its memory.
func TestReadersDoNotWaitForTheRelease(t *testing.T) {
	_, c, dev := kept(t)
	committed := make(chan struct{})
	slow := cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		if call.Symbol() == "cuMemRelease" {
			select {
			case <-committed:
			case <-soon(t).Done():
				t.Error("there is no version while its writer releases its memory")
			}
		}
		return next()
	}))
	done := make(chan error, 1)
	go func() {
		_, err := c.Put(soon(t), Put{Name: "w"}, part(0, slow, 7))
		done <- err
	}()
	other := dialled(t, c.socket)
	require.Eventually(t, func() bool {
		names, err := other.List(soon(t))
		return err == nil && len(names) == 1 && names[0].State == "ok"
	}, waitLong, waitStep)
	all := attach(t, other, dev, "w")
	requireBytes(t, all[0], 7)
	letGoOf(t, all)
	close(committed)
	require.NoError(t, <-done, "Put does")
}

// A version is kept although its writer cannot release the memory, and Put reports both.
func TestMemoryThatIsNotReleased(t *testing.T) {
	_, c, dev := kept(t)
	var failed atomic.Bool
	broken := cutest.Device(t, cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		if call.Symbol() == "cuMemRelease" && failed.CompareAndSwap(false, true) {
			return sys.CUDA_ERROR_UNKNOWN
		}
		return r
	}))
	k, err := c.Put(soon(t), Put{Name: "w", Keep: true}, part(0, broken, 7))
	require.ErrorIs(t, err, cu.ErrUnknown)
	require.ErrorContains(t, err, "could not release their memory")
	require.Equal(t, uint64(1), k.Version)
	require.Empty(t, k.Parts)
	all := attach(t, c, dev, "w")
	requireBytes(t, all[0], 7)
}

// Readers need nothing but package share.
func TestShareReadsAKeeper(t *testing.T) {
	_, c, dev := kept(t)
	put(t, c, dev, "a", 1)
	put(t, c, dev, "b", 2)
	offers := ok(share.List(soon(t), c.socket, nil))(t)
	require.Len(t, offers, 2)

	seen := 0
	for att, err := range share.Follow(soon(t), c.socket, "a", dev, nil) {
		require.NoError(t, err)
		seen++
		var d api.Data
		require.NoError(t, json.Unmarshal(att.Offer().Data, &d))
		require.Equal(t, uint64(seen), d.Version)
		requireBytes(t, &Attached{att, d}, byte(d.Version))
		if seen == 3 {
			break
		}
		put(t, c, dev, "a", byte(seen+1))
	}
	require.Equal(t, 3, seen)
}

// A version whose parts are on two devices is one, and each part is mapped on its own.
func TestPartsOnTwoDevices(t *testing.T) {
	_, c, dev := kept(t)
	first, second := cutest.TwoDevices(t, dev.Driver())
	devs := []*cu.Device{first, second}
	k := ok(c.Put(soon(t), Put{Name: "sharded", Parts: 2}, part(0, devs[0], 10), part(1, devs[1], 11)))(t)
	require.Equal(t, uint64(1), k.Version)
	all := attach(t, c, devs[0], "sharded")
	require.Len(t, all, 2)
	for i, a := range all {
		require.Equal(t, devs[i].UUID(), a.Device().UUID())
		require.Equal(t, i, a.Data.Part)
		requireBytes(t, a, byte(10+i))
	}
	one := ok(Attach(soon(t), devs[0].Driver(), c, "sharded", Want{Part: new(1)}))(t)
	require.Len(t, one, 1)
	requireBytes(t, one[0], 11)
	letGoOf(t, one)
	_, err := Attach(soon(t), devs[0].Driver(), c, "sharded", Want{Part: new(2)})
	requireCode(t, "not-found", err)
}

// The next version may have other parts. Readers of the one before are told that it is superseded,
// and keep their leases, also after a restart.
func TestNextVersionHasOtherParts(t *testing.T) {
	s, c, dev := kept(t)
	require.NoError(t, errOf(c.Put(soon(t), Put{Name: "x", Parts: 2}, part(0, dev, 1), part(1, dev, 2))))
	first, other := attach(t, c, dev, "x")[0], attach(t, c, dev, "x")[1]
	put(t, c, dev, "x", 3)
	<-first.Superseded()
	<-other.Superseded()
	require.NoError(t, first.Err())
	require.ErrorIs(t, errOf(share.Attach(soon(t), c.socket, "x/0", dev, nil)), share.ErrRefused)
	require.False(t, stat(t, c, "x").Retired[0].Gone)
	requireBytes(t, attach(t, c, dev, "x")[0], 3)

	require.NoError(t, s.Close())
	opened(t, c.socket)
	<-first.Done()
	again := ok(first.Resume(soon(t)))(t)
	<-again.Superseded()
	require.NoError(t, again.Close())
}

// A reader that takes all parts gets those of one version, also if the next has more or fewer.
func TestPartsComeAndGo(t *testing.T) {
	_, c, dev := kept(t)
	write := func(n int) error {
		var parts []Part
		for i := range n {
			parts = append(parts, part(i, dev, byte(n)))
		}
		_, err := c.Put(soon(t), Put{Name: "x", Parts: n}, parts...)
		return err
	}
	require.NoError(t, write(1))
	done := make(chan error, 1)
	go func() {
		for round := range 10 {
			if err := write(1 + round%3); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for over := false; !over; {
		select {
		case err := <-done:
			require.NoError(t, err)
			over = true
		default:
		}
		all := ok(Attach(soon(t), dev.Driver(), c, "x", Want{}))(t)
		require.Len(t, all, all[0].Data.Parts)
		letGoOf(t, all)
	}
}

// Two writers make one version: it is there when the second has delivered, and not before.
func TestTransaction(t *testing.T) {
	_, c, dev := kept(t)
	other := dialled(t, c.socket)
	tx := Put{Name: "tx", Parts: 2, Transaction: "run-1"}
	k := ok(c.Put(soon(t), tx, part(1, dev, 21)))(t)
	require.Equal(t, Kept{Missing: 1, Digests: k.Digests}, k)
	_, err := Attach(soon(t), dev.Driver(), c, "tx", Want{})
	requireCode(t, "not-found", err)
	info := stat(t, c, "tx")
	require.Equal(t, "reserved", info.State)
	require.Equal(t, uint64(small), info.ReservedBytes)
	_, err = other.Put(soon(t), tx, part(1, dev, 22))
	requireCode(t, "taken", err)
	wrong := tx
	wrong.Labels = map[string]string{"other": "labels"}
	_, err = other.Put(soon(t), wrong, part(0, dev, 22))
	requireCode(t, "conflict", err)
	k = ok(other.Put(soon(t), tx, part(0, dev, 20)))(t)
	require.Equal(t, uint64(1), k.Version)
	all := attach(t, c, dev, "tx")
	requireBytes(t, all[0], 20)
	requireBytes(t, all[1], 21)
}

func TestExpect(t *testing.T) {
	_, c, dev := kept(t)
	version := func(n uint64) *uint64 { return &n }
	_, err := c.Put(soon(t), Put{Name: "x", Expect: version(1)}, part(0, dev, 1))
	requireCode(t, "conflict", err)
	k := ok(c.Put(soon(t), Put{Name: "x", Expect: version(0)}, part(0, dev, 1)))(t)
	require.Equal(t, uint64(1), k.Version)

	late := part(0, dev, 9)
	late.Write = func(ctx context.Context, b *vmm.Buffer) error {
		put(t, dialled(t, c.socket), dev, "x", 2) // another writer is faster
		return writeAll(9)(ctx, b)
	}
	_, err = c.Put(soon(t), Put{Name: "x", Expect: version(1)}, late)
	requireCode(t, "conflict", err)
	info := stat(t, c, "x")
	require.Equal(t, uint64(2), info.Version)
	require.Empty(t, info.Pending, "what came for the version that is not to be is dropped")
	requireBytes(t, attach(t, c, dev, "x")[0], 2)
}

func TestLabelsAreDemanded(t *testing.T) {
	_, c, dev := kept(t)
	require.NoError(t, errOf(c.Put(soon(t), Put{Name: "x", Labels: map[string]string{"revision": "7"}}, part(0, dev, 1))))
	want := Want{Labels: map[string]string{"revision": "8"}}
	require.ErrorIs(t, errOf(Attach(soon(t), dev.Driver(), c, "x", want)), ErrLabels)
	want.Labels["revision"] = "7"
	all := ok(Attach(soon(t), dev.Driver(), c, "x", want))(t)
	letGoOf(t, all)
}

// A Put that fails leaves the version before it, and nothing booked.
func TestPutThatFails(t *testing.T) {
	_, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	mine := errors.New("the file is not there")
	bad := part(0, dev, 2)
	bad.Write = func(context.Context, *vmm.Buffer) error { return mine }
	require.ErrorIs(t, errOf(c.Put(soon(t), Put{Name: "x"}, bad)), mine)
	info := stat(t, c, "x")
	require.Equal(t, uint64(1), info.Version)
	require.Zero(t, info.ReservedBytes)

	for _, p := range []struct {
		put   Put
		parts []Part
		words string
	}{
		{Put{Name: "x"}, nil, "0 parts"},
		{Put{Name: "x"}, []Part{part(0, dev, 1), part(1, dev, 1)}, "2 parts"},
		{Put{Name: "x", Parts: 2}, []Part{part(0, dev, 1)}, "transaction"},
		{Put{Name: "x"}, []Part{{Size: 1}}, "device"},
		{Put{Name: "x", Parts: 2}, []Part{part(0, dev, 1), part(0, dev, 2)}, "parts 0 and 1 of this Put both have index 0"},
		{Put{Name: "x", Parts: 2}, []Part{part(1, dev, 1), part(2, dev, 2)}, "index 2 of 2 parts: want 0 to 1"},
		{Put{Name: "x"}, []Part{part(-1, dev, 1)}, "index -1"},
	} {
		require.ErrorContains(t, errOf(c.Put(soon(t), p.put, p.parts...)), p.words)
	}
	_, err := c.Put(soon(t), Put{Name: "x/1"}, part(0, dev, 1))
	requireCode(t, "bad-request", err)
	bad = part(0, dev, 2)
	bad.Table = json.RawMessage(`{`)
	_, err = c.Put(soon(t), Put{Name: "x"}, bad)
	requireCode(t, "bad-request", err)
	require.Zero(t, stat(t, c, "x").ReservedBytes)
	bad.Table = make(json.RawMessage, protocol.MaxTable+1)
	bad.Write = func(context.Context, *vmm.Buffer) error { t.Error("it was loaded"); return nil }
	require.ErrorContains(t, errOf(c.Put(soon(t), Put{Name: "x"}, bad)), "the table of part 0 has 67043329 bytes; 67043328 are allowed")
}

// A Put whose time is over reports that, and gives up what it booked, although its connection
// was in the middle of a request.
func TestPutOutOfTime(t *testing.T) {
	_, c, dev := kept(t)
	ctx, cancel := context.WithCancel(soon(t))
	late := part(0, dev, 2)
	late.Write = func(context.Context, *vmm.Buffer) error { cancel(); return nil }
	require.ErrorIs(t, errOf(c.Put(ctx, Put{Name: "x"}, late)), context.Canceled)
	_, err := c.Stat(soon(t), "x")
	requireCode(t, "not-found", err)
}
