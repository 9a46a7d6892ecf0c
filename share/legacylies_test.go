package share

import (
	"context"
	"errors"
	"math"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// answerAfterFree is what a consumer hears that says it has opened memory which was
// freed and replaced meanwhile.
func answerAfterFree(t *testing.T, srv *Server, ctx *cu.Context) wire.Message {
	t.Helper()
	mem := ok(ctx.Alloc(legacyUnit))(t)
	m := ok(LegacyAt(ctx, mem.Ptr(), legacyUnit))(t)
	s := serveLegacy(t, srv, m)
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Attach{Driver: ctx.Device().Driver().Kind(), Access: ReadWrite, Name: "data", Capabilities: wire.TakesLegacy})))
	require.NotNil(t, heard(t, conn).(wire.Offer).Legacy)
	require.NoError(t, mem.Close())
	other := ok(ctx.Alloc(legacyUnit))(t)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Mapped{Generation: m.Generation()})))
	answer := heard(t, conn)
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrMemoryGone)
	s.stop(t)
	require.NoError(t, errors.Join(m.Close(), other.Close()))
	return answer
}

// legacyTruth is what an honest producer would say of a child's memory.
func legacyTruth(t testing.TB, dev *cu.Device) (wire.Offer, *child) {
	t.Helper()
	c := start(t, "legacy owner", "", "")
	require.True(t, c.out.Scan())
	var h cu.IPCHandle
	require.NoError(t, h.UnmarshalText(c.out.Bytes()))
	return wire.Offer{
		Memory: vmm.Descriptor{Kind: dev.Driver().Kind(), Device: dev.UUID(), Size: 1 << 20, Chunks: 1, ChunkSize: legacyUnit, Generation: 77},
		Access: ReadWrite, Name: "data", Legacy: &LegacyHandle{Handle: h},
	}, c
}

// confirming is a script that makes an offer, waits for the answer, and tells more.
func confirming(t *testing.T, o wire.Offer, more ...wire.Message) func(*sock.Conn) {
	return func(conn *sock.Conn) {
		_ = conn.Send(soon(t), wire.Encode(o))
		if rec, err := conn.Receive(soon(t)); err == nil {
			m, _ := wire.Decode(rec.Data)
			_ = rec.Close()
			if _, failed := m.(wire.Verdict); failed {
				return // it waits for that
			}
		}
		for _, m := range more {
			_ = conn.Send(soon(t), wire.Encode(m))
		}
		if len(more) > 0 {
			if rec, err := conn.Receive(soon(t)); err == nil {
				_ = rec.Close()
			}
		}
	}
}

// FAULTS 13: what opens is not enough. Without a producer that confirms the memory
// after it was opened, nobody is attached to it.
func TestFault13_LegacyMemoryThatNobodyConfirms(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr, _ := legacyTruth(t, dev)
	yes := wire.Confirm{Generation: tr.Memory.Generation}
	for name, c := range map[string]struct {
		script func(*sock.Conn)
		want   error
	}{
		"it goes":                       {confirming(t, tr), sock.ErrPeerLost},
		"it revokes":                    {confirming(t, tr, wire.Revoke{Text: "freed"}), ErrRevoked},
		"it refuses":                    {confirming(t, tr, wire.Refuse{Code: RefusedBusy, Text: "x"}), ErrRefused},
		"another generation":            {confirming(t, tr, wire.Confirm{Generation: 78}), ErrProtocol},
		"it publishes":                  {confirming(t, tr, wire.Publish{Generation: 77}), ErrProtocol},
		"progress, and then it goes":    {confirming(t, tr, wire.Progress{Done: 1, Total: 2}, wire.Revoke{}), ErrRevoked},
		"confirmed before it was asked": {tell(t, lie{wire.Encode(yes), nil}), ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, errOf(attachAny(soon(t), impostor(t, c.script), "data", dev)), c.want)
		})
	}
	t.Run("silence", func(t *testing.T) {
		_, err := attachAny(soon(t), impostor(t, func(conn *sock.Conn) {
			_ = conn.Send(soon(t), wire.Encode(tr))
			_ = conn.WaitClose(soon(t))
		}), "data", dev, WithTimeout(100*time.Millisecond))
		require.ErrorIs(t, err, ErrTimeout)
	})
	t.Run("honest", func(t *testing.T) {
		att := ok(attachAny(soon(t), impostor(t, confirming(t, tr, yes)), "data", dev))(t)
		requireNoiseAt(t, ctx, att.Ptr(), 1<<20, 1)
		require.NoError(t, att.Close())
	})
}

// A consumer that gives up closes the memory before it says so, because the producer may free it
// then.
func TestLegacyIsClosedBeforeItIsGivenUp(t *testing.T) {
	spy, dev, _ := spied(t)
	tr, _ := legacyTruth(t, dev)
	wait := tr
	wait.Pending = true
	for i, c := range []struct {
		offer wire.Offer
		lie   wire.Message
	}{
		{tr, wire.Confirm{Generation: 78}}, {tr, wire.Publish{Generation: 77}}, {wait, wire.Publish{Generation: 78}}, {wait, wire.Confirm{Generation: 77}},
	} {
		_, err := attachAny(soon(t), impostor(t, func(conn *sock.Conn) {
			_ = conn.Send(soon(t), wire.Encode(c.offer))
			_ = conn.Send(soon(t), wire.Encode(c.lie))
			if !c.offer.Pending {
				require.Equal(t, wire.Mapped{Generation: 77}, heard(t, conn))
			}
			require.False(t, heard(t, conn).(wire.Verdict).OK)
			require.Equal(t, i+1, spy.count("cuIpcCloseMemHandle"))
		}), "data", dev)
		require.ErrorIs(t, err, ErrProtocol)
	}
}

// Invariant 2: whatever a producer says of legacy memory, the consumer gets an error
// and keeps nothing.
func TestLegacyLies(t *testing.T) {
	dev, _ := leavesNothing(t)
	tr, _ := legacyTruth(t, dev)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer sock.CloseFiles([]*os.File{r, w})
	change := func(f func(o *wire.Offer)) []lie {
		o := tr
		handle := *tr.Legacy
		o.Legacy = &handle
		f(&o)
		return []lie{{wire.Encode(o), nil}}
	}
	for name, c := range map[string]struct {
		lies []lie
		want error
	}{
		"handle of zeros":              {change(func(o *wire.Offer) { o.Legacy.Handle = cu.IPCHandle{} }), cu.ErrInvalidValue},
		"a descriptor with it":         {[]lie{{wire.Encode(tr), []*os.File{r}}}, ErrWire},
		"read-only":                    {change(func(o *wire.Offer) { o.Access = ReadOnly }), ErrWire},
		"fault 35: size 0":             {change(func(o *wire.Offer) { o.Memory.Size = 0 }), ErrWire},
		"fault 36: larger":             {change(func(o *wire.Offer) { o.Memory.Size = legacyUnit + 1 }), ErrWire},
		"fault 36: allocation":         {change(func(o *wire.Offer) { o.Memory.ChunkSize = 1 << 30; o.Memory.Size = 1 << 30 }), vmm.ErrDescriptor},
		"fault 38: offset":             {change(func(o *wire.Offer) { o.Legacy.Offset = legacyUnit }), ErrWire},
		"fault 38: overflow":           {change(func(o *wire.Offer) { o.Legacy.Offset = math.MaxUint64 - 1<<20 + 1 }), ErrWire},
		"two chunks":                   {change(func(o *wire.Offer) { o.Memory.Chunks = 2 }), ErrWire},
		"fault 39: unknown device":     {change(func(o *wire.Offer) { o.Memory.Device[3] ^= 1 }), vmm.ErrDevice},
		"other kind of driver":         {change(func(o *wire.Offer) { o.Memory.Kind = cu.CUDA + cu.Soft - o.Memory.Kind }), vmm.ErrKind},
		"fault 40: unknown handle":     {[]lie{{flaw(tr, 18, 3), nil}}, ErrUnsupported},
		"another offer than asked":     {change(func(o *wire.Offer) { o.Name = "other" }), ErrProtocol},
		"descriptors that do not come": {[]lie{{wire.Encode(wire.Offer{Memory: vmm.Descriptor{Chunks: 1}, Access: ReadOnly, Name: "data", FDs: 1}), nil}}, ErrWire},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := attachAny(soon(t), impostor(t, tell(t, c.lies...)), "data", dev)
			require.ErrorIs(t, err, c.want)
			require.NotErrorIs(t, err, sock.ErrPeerLost)
		})
	}
	t.Run("a hidden device, whose handle is none", func(t *testing.T) {
		lies := change(func(o *wire.Offer) { o.Memory.Device[3] ^= 1; o.Legacy.Handle = cu.IPCHandle{} })
		_, err := attachAny(soon(t), impostor(t, tell(t, lies...)), "data", dev, WithAnyDevice())
		require.ErrorIs(t, err, cu.ErrInvalidValue)
		require.ErrorContains(t, err, "not visible to this process")
	})
	t.Run("too large", func(t *testing.T) {
		require.ErrorIs(t, errOf(attachAny(soon(t), impostor(t, tell(t, lie{wire.Encode(tr), nil})), "data", dev, WithMaxSize(1))), ErrTooLarge)
	})
	t.Run("not wanted", func(t *testing.T) {
		require.ErrorIs(t, errOf(attachAny(soon(t), impostor(t, tell(t, lie{wire.Encode(tr), nil})), "data", dev, WithHandle(HandleFD))), ErrHandle)
	})
}

// FAULTS 13, on the wire: the old handle, after its owner has other memory at the
// address. If it opens at all, nobody confirms it.
func TestFault13_OldLegacyHandle(t *testing.T) {
	dev, _ := leavesNothing(t)
	tr, c := legacyTruth(t, dev)
	require.NoError(t, errOf(c.in.(interface{ Write([]byte) (int, error) }).Write([]byte("again\n"))))
	require.True(t, c.out.Scan())
	t.Logf("the handle was %s and is %s", tr.Legacy.Handle, c.out.Text())
	_, err := attachAny(soon(t), impostor(t, confirming(t, tr, wire.Revoke{Text: "freed"})), "data", dev)
	if !errors.Is(err, cu.ErrInvalidValue) { // it opens nothing, or what the producer then takes back
		require.ErrorIs(t, err, ErrRevoked)
	}
	t.Log(err)
}

// A handle is for other processes.
func TestLegacyOfOneself(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := serveLegacy(t, srv, newLegacy(t, ctx, 4096))
	_, err := attachAny(soon(t), srv.Path(), "data", dev)
	require.ErrorIs(t, err, cu.ErrInvalidContext)
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrVerdict)
	_, err = Attach(soon(t), srv.Path(), "data", dev)
	require.ErrorIs(t, err, ErrUnsupported, "only a consumer that asks for legacy memory gets it")
	require.ErrorContains(t, err, "legacy handle")
	require.ErrorContains(t, s.await(t, PeerRefused, 1).Err, "legacy handle")
}

func TestHandleThatIsNotWanted(t *testing.T) {
	dev, ctx, srv := listening(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	require.ErrorIs(t, errOf(attachAny(soon(t), srv.Path(), "data", dev, WithHandle(HandleLegacy))), ErrHandle)
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrVerdict)
	require.NoError(t, attached(t, srv, "data", dev, WithHandle(HandleFD)).Close())
}

// FAULTS 5, 6, of legacy memory: the producer notices, may free, and serves the next.
//
//fault:rows 5
func TestLegacyConsumerKilled(t *testing.T) {
	for do, line := range map[string]string{"stop when received": "received", "stop when opened": "opened", "stop when mapped": "mapped"} {
		t.Run(line, func(t *testing.T) {
			_, ctx := leavesNothing(t)
			m := newLegacy(t, ctx, 1<<20)
			srv := listen(t)
			s := serveLegacy(t, srv, m, WithVerdict())
			c := start(t, "consumer", srv.Path(), do)
			c.says(t, line)
			c.kill()
			err := s.await(t, Ended, 1).Err
			require.ErrorIs(t, err, ErrNoVerdict)
			require.ErrorIs(t, err, sock.ErrPeerLost)
			start(t, "consumer", srv.Path(), "").end(t)
			require.NoError(t, s.await(t, Ended, 2).Err)
			requireNoiseAt(t, ctx, m.Ptr(), m.Size(), 2)
			s.stop(t)
			require.NoError(t, m.Close())
		})
	}
}

// FAULTS 2, 3, of legacy memory: before the memory is confirmed nobody is attached to
// it; after that it stays, and its end is noticed.
//
//fault:rows 2
func TestLegacyProducerKilled(t *testing.T) {
	for _, when := range []string{"received", "opened", "attached"} {
		t.Run(when, func(t *testing.T) {
			spy, dev, ctx := spied(t)
			path := socketPath(t)
			c := start(t, "legacy producer", path, "3145728")
			c.says(t, "listening")
			kill := func(step string) {
				if step == when {
					c.kill()
				}
			}
			spy.at("open", func() { kill("opened") })
			att, err := attachAny(soon(t), path, "data", dev,
				OnReceived(func(Offer, []*os.File) { kill("received") }))
			switch when {
			case "received", "opened":
				require.ErrorIs(t, err, sock.ErrPeerLost)
			default:
				require.NoError(t, err)
				c.kill()
				require.ErrorIs(t, awaitDone(t, att), sock.ErrPeerLost)
				requireNoiseAt(t, ctx, att.Ptr(), att.Size(), 1)
				require.ErrorIs(t, att.Report(soon(t), nil), sock.ErrPeerLost)
				require.NoError(t, att.Close())
			}
			srv, err := Listen(path) // what it left on disk is reclaimed
			require.NoError(t, err)
			require.NoError(t, srv.Close())
		})
	}
}

// A producer that stops answering between the opening and the confirmation.
func TestLegacyProducerStopped(t *testing.T) {
	spy, dev, _ := spied(t)
	path := socketPath(t)
	c := start(t, "legacy producer", path, "4096")
	c.says(t, "listening")
	spy.at("open", func() { c.stop(t) })
	require.ErrorIs(t, errOf(attachAny(soon(t), path, "data", dev, WithTimeout(300*time.Millisecond))), ErrTimeout)
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGCONT))
	c.end(t)
}

// Closing and offering at once: either the offer is refused, or the memory stays.
func TestLegacyClosedWhileItIsOffered(t *testing.T) {
	_, ctx, srv := listening(t)
	for range 50 {
		m := ok(NewLegacy(ctx, 1))(t)
		var wg sync.WaitGroup
		over, cancel := context.WithCancel(context.Background())
		wg.Go(func() {
			if err := srv.OfferLegacy(over, "data", m); err != nil {
				require.ErrorIs(t, err, ErrClosed)
			}
		})
		err := m.Close()
		if err != nil {
			require.ErrorIs(t, err, ErrInUse)
			require.NoError(t, errOf(ctx.PointerAttributes(m.Ptr())))
		}
		cancel()
		wg.Wait()
		require.NoError(t, m.Close())
	}
}
