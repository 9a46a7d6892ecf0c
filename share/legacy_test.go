package share

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpufd/gpufd/share/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Nobody opens memory of the own process by a handle: of each pair, one is a child.

// attachAny is Attach of memory that is opened by whatever handle, unless opts say.
func attachAny(ctx context.Context, path, name string, dev *cu.Device, opts ...AttachOption) (*Attachment, error) {
	return Attach(ctx, path, name, dev, append([]AttachOption{WithHandle(HandleFD, HandleLegacy)}, opts...)...)
}

// newLegacy is memory full of noise, closed when t ends.
func newLegacy(t testing.TB, ctx *cu.Context, size uint64) *Legacy {
	t.Helper()
	m, err := NewLegacy(ctx, size)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	require.NoError(t, cu.CopyToDevice(ctx, nil, m.Ptr(), noise(size, 1)))
	return m
}

// serveLegacy offers m as "data" until t ends or cancel is called.
func serveLegacy(t testing.TB, srv *Server, m *Legacy, opts ...OfferOption) *served {
	t.Helper()
	s := newServed(srv)
	s.start(t, "data", func(ctx context.Context) error {
		return srv.OfferLegacy(ctx, "data", m, append([]OfferOption{OnEvent(s.see)}, opts...)...)
	})
	return s
}

func requireNoiseAt(t testing.TB, ctx *cu.Context, p cu.DevicePtr, size uint64, seed int) {
	t.Helper()
	got := make([]byte, size)
	require.NoError(t, cu.CopyToHost(ctx, nil, got, p))
	require.True(t, string(noise(size, seed)) == string(got))
}

// childLegacyProducer offers legacy memory until its input ends.
func childLegacyProducer() error {
	_, ctx, err := childDevice()
	if err != nil {
		return err
	}
	size, err := strconv.ParseUint(os.Getenv(doEnv), 10, 64)
	if err != nil {
		return err
	}
	m, err := NewLegacy(ctx, size)
	if err != nil {
		return err
	}
	if err := cu.CopyToDevice(ctx, nil, m.Ptr(), noise(size, 1)); err != nil {
		return err
	}
	offer := func(served context.Context, srv *Server) error { return srv.OfferLegacy(served, "data", m) }
	return errors.Join(serveUntilInputEnds(offer), m.Close(), ctx.Close())
}

// childLegacyOwner has memory, and prints its handle. For every line that it is sent
// it frees that and has other memory.
func childLegacyOwner() error {
	_, ctx, err := childDevice()
	if err != nil {
		return err
	}
	in := bufio.NewScanner(os.Stdin)
	for seed := 1; ; seed++ {
		mem, err := ctx.Alloc(legacyUnit)
		if err != nil {
			return err
		}
		h, herr := mem.IPCHandle()
		if err := errors.Join(herr, cu.CopyToDevice(ctx, nil, mem.Ptr(), noise(legacyUnit, seed))); err != nil {
			return err
		}
		fmt.Println(h)
		more := in.Scan()
		if err := mem.Close(); err != nil || !more {
			return errors.Join(err, ctx.Close())
		}
	}
}

func TestLegacyHandoff(t *testing.T) {
	for _, size := range []uint64{1, 4096, legacyUnit, legacyUnit + 1, 3*legacyUnit - 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			_, ctx := leavesNothing(t)
			m := newLegacy(t, ctx, size)
			require.Zero(t, m.Allocation()%legacyUnit)
			require.EqualValues(t, size, m.Size())
			srv := listen(t)
			s := serveLegacy(t, srv, m, WithVerdict(), WithLeases(1), WithData([]byte("its own")))
			c := start(t, "consumer", srv.Path(), "")
			c.end(t)
			require.NoError(t, s.end(t))
			require.NoError(t, s.await(t, Ended, 1).Err)
			require.EqualValues(t, c.cmd.Process.Pid, s.await(t, Mapped, 1).Peer.PID)
			requireNoiseAt(t, ctx, m.Ptr(), size, 2)
		})
	}
}

func TestLegacyOfSeveralConsumersAtOnce(t *testing.T) {
	_, ctx := leavesNothing(t)
	m := newLegacy(t, ctx, 12345)
	srv := listen(t)
	s := serveLegacy(t, srv, m, WithVerdict(), WithLeases(3))
	var all []*child
	for range 3 {
		all = append(all, start(t, "consumer", srv.Path(), "stop when mapped"))
	}
	for _, c := range all {
		c.says(t, "mapped")
	}
	require.Len(t, srv.Leases("data"), 3)
	for _, c := range all {
		c.end(t)
	}
	require.NoError(t, s.end(t))
	requireNoiseAt(t, ctx, m.Ptr(), m.Size(), 2)
}

func TestLegacyAttachment(t *testing.T) {
	spy, dev, ctx := spied(t)
	path := socketPath(t)
	c := start(t, "legacy producer", path, "12345")
	c.says(t, "listening")
	var steps []vmm.Step
	att, err := attachAny(soon(t), path, "data", dev, WithRoom(1<<20), OnStep(func(s vmm.Step) { steps = append(steps, s) }),
		OnReceived(func(o Offer, files []*os.File) {
			require.Equal(t, HandleLegacy, o.Handle())
			require.Empty(t, files)
		}))
	require.NoError(t, err)
	require.Nil(t, att.Buffer())
	require.EqualValues(t, 12345, att.Size())
	require.Equal(t, ReadWrite, att.Access(), "read-only was asked for and cannot be had")
	require.Same(t, dev, att.Device())
	require.EqualValues(t, legacyUnit, att.Offer().Descriptor.ChunkSize)
	require.Len(t, steps, 1)
	require.Equal(t, vmm.OpOpen, steps[0].Op)
	requireNoiseAt(t, ctx, att.Ptr(), att.Size(), 1)
	require.NoError(t, att.Close())
	require.NoError(t, att.Close())

	att, err = attachAny(soon(t), path, "", dev, WithAccess(ReadWrite), WithHandle(HandleLegacy))
	require.NoError(t, err)
	require.NoError(t, att.Report(soon(t), nil))
	require.Equal(t, 2, spy.count("cuIpcCloseMemHandle"), "closed before it was reported")
	require.NoError(t, att.Close())

	att, err = attachAny(soon(t), path, "", dev)
	require.NoError(t, err)
	require.NoError(t, c.in.Close())
	require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
	requireNoiseAt(t, ctx, att.Ptr(), att.Size(), 1)
	require.NoError(t, att.Close())
	require.NoError(t, c.cmd.Wait())
	require.Equal(t, 3, spy.count("cuIpcOpenMemHandle_v2"))
	require.Equal(t, 3, spy.count("cuIpcCloseMemHandle"))
}

// The application decides with the handle before it, which is a copy.
func TestLegacyIsAuthorized(t *testing.T) {
	_, ctx := leavesNothing(t)
	m := newLegacy(t, ctx, 1)
	asked := make(chan cu.IPCHandle, 2)
	srv := listen(t, WithAuthorize(func(_ sock.Peer, o Offer) error {
		asked <- o.Legacy.Handle
		clear(o.Legacy.Handle[:])
		return nil
	}))
	s := serveLegacy(t, srv, m, WithLeases(2))
	for range 2 {
		c := start(t, "consumer", srv.Path(), "stop when mapped")
		c.says(t, "mapped")
		c.kill()
	}
	require.NoError(t, s.end(t))
	first := <-asked
	require.NotZero(t, first)
	require.Equal(t, first, <-asked)
}

// The application that decides, and who watches, hear that a consumer can write, also
// of one that asks for less.
func TestLegacyIsAlwaysReadWrite(t *testing.T) {
	_, ctx := leavesNothing(t)
	access := make(chan cu.Access, 1)
	srv := listen(t, WithAuthorize(func(_ sock.Peer, o Offer) error {
		access <- o.Access
		return nil
	}))
	s := serveLegacy(t, srv, newLegacy(t, ctx, 1))
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wants(ctx.Device()))))
	require.Equal(t, ReadWrite, heard(t, conn).(wire.Offer).Access)
	require.Equal(t, ReadWrite, <-access)
	require.Equal(t, ReadWrite, s.await(t, Connected, 1).Access)
	require.Equal(t, ReadWrite, srv.Leases("data")[0].Access())
	require.NoError(t, conn.Close())
}

// A part of memory that somebody else has.
func TestLegacyAtAPart(t *testing.T) {
	_, ctx := leavesNothing(t)
	mem, err := ctx.Alloc(1 << 20)
	require.NoError(t, err)
	defer func() { require.NoError(t, mem.Close()) }()
	const offset, size = 12345, 6789
	require.NoError(t, cu.Fill(ctx, nil, mem.Ptr(), uint8(0), 1<<20))
	require.NoError(t, cu.CopyToDevice(ctx, nil, mem.Ptr().Add(offset), noise(size, 1)))
	for _, n := range []uint64{0, mem.Size(), math.MaxUint64} {
		_, err = LegacyAt(ctx, mem.Ptr().Add(offset), n)
		require.ErrorIs(t, err, vmm.ErrSize)
	}
	m, err := LegacyAt(ctx, mem.Ptr().Add(offset), size)
	require.NoError(t, err)
	srv := listen(t)
	s := serveLegacy(t, srv, m, WithVerdict(), WithLeases(1))
	start(t, "consumer", srv.Path(), "").end(t)
	require.NoError(t, s.end(t))
	require.NoError(t, m.Close())
	all := make([]byte, 1<<20)
	require.NoError(t, cu.CopyToHost(ctx, nil, all, mem.Ptr()))
	require.Equal(t, string(noise(size, 2)), string(all[offset:offset+size]))
	require.Zero(t, all[offset-1])
	require.Zero(t, all[offset+size])
}

func TestLegacyMemoryOfAnotherKind(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	_, err := LegacyAt(ctx, buf.Ptr(), 1)
	require.ErrorIs(t, err, cu.ErrInvalidValue)
	require.ErrorContains(t, err, "virtual memory")
	_, err = NewLegacy(ctx, 0)
	require.ErrorIs(t, err, vmm.ErrSize)
	_, err = NewLegacy(ctx, math.MaxUint64)
	require.ErrorIs(t, err, vmm.ErrSize)
}

// Consumers open the memory while the data is in the making, and are attached when
// it is there.
func TestLegacyPrepared(t *testing.T) {
	_, ctx := leavesNothing(t)
	m, err := NewLegacy(ctx, 1<<20)
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	srv := listen(t)
	s := newServed(srv)
	p, err := srv.PrepareLegacy("data", m, OnEvent(s.see), WithVerdict(), WithLeases(1))
	require.NoError(t, err)
	require.ErrorIs(t, m.Close(), ErrInUse)
	c := start(t, "consumer", srv.Path(), "")
	s.await(t, Sent, 1)
	require.NoError(t, cu.CopyToDevice(ctx, nil, m.Ptr(), noise(1<<20, 1)))
	require.NoError(t, p.Offer(soon(t)))
	c.end(t)
	requireNoiseAt(t, ctx, m.Ptr(), 1<<20, 2)

	p, err = srv.PrepareLegacy("data", m)
	require.NoError(t, err)
	require.NoError(t, p.Close())
}

// FAULTS 9: the memory stays as long as anybody has a lease of it, and who that is,
// is said.
func TestFault9_LegacyMemoryIsInUse(t *testing.T) {
	_, ctx := leavesNothing(t)
	m := newLegacy(t, ctx, 1<<20)
	srv := listen(t)
	s := serveLegacy(t, srv, m)
	err := m.Close()
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, "end the offer")
	c := start(t, "consumer", srv.Path(), "stop when mapped")
	c.says(t, "mapped")
	err = m.Close()
	require.ErrorIs(t, err, ErrInUse)
	require.ErrorContains(t, err, fmt.Sprintf("pid %d", c.cmd.Process.Pid))
	var use *InUseError
	require.ErrorAs(t, err, &use)
	require.Len(t, use.Peers, 1)
	requireNoiseAt(t, ctx, m.Ptr(), m.Size(), 1)

	srv.Leases("data")[0].Revoke()
	require.Never(t, func() bool { return len(s.of(Ended)) > 0 }, 30*time.Millisecond, 10*time.Millisecond)
	requireInUse(t, m, c)
	c.kill()
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrRevoked)
	require.ErrorIs(t, m.Close(), ErrInUse, "others may come")
	s.cancel()
	require.NoError(t, s.end(t))
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.ErrorIs(t, srv.OfferLegacy(soon(t), "data", m), ErrClosed)
}

// FAULTS 10: attached twice, the memory is at one address until both are closed.
func TestFault10_LegacyAttachedTwice(t *testing.T) {
	dev, ctx := leavesNothing(t)
	path := socketPath(t)
	c := start(t, "legacy producer", path, "4096")
	c.says(t, "listening")
	one, err := attachAny(soon(t), path, "data", dev)
	require.NoError(t, err)
	two, err := attachAny(soon(t), path, "data", dev)
	require.NoError(t, err)
	require.Equal(t, one.Ptr(), two.Ptr())
	require.NoError(t, one.Close())
	require.NoError(t, one.Close(), "which does not count twice")
	requireNoiseAt(t, ctx, two.Ptr(), two.Size(), 1)
	require.NoError(t, two.Close())
	c.end(t)
}

// FAULTS 13: memory that was freed by somebody who does not know of the offer, with
// other memory in its place.
func TestFault13_LegacyMemoryIsFreed(t *testing.T) {
	_, ctx := leavesNothing(t)
	mem, err := ctx.Alloc(legacyUnit)
	require.NoError(t, err)
	m, err := LegacyAt(ctx, mem.Ptr(), legacyUnit)
	require.NoError(t, err)
	srv := listen(t)
	s := serveLegacy(t, srv, m)
	require.NoError(t, mem.Close())
	require.ErrorIs(t, legacySource{m}.vouch(), ErrMemoryGone, "nothing is there")
	mem, err = ctx.Alloc(legacyUnit)
	require.NoError(t, err)
	defer func() { require.NoError(t, mem.Close()) }()
	t.Logf("was at %s, is at %s", m.Ptr(), mem.Ptr())
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Attach{Driver: ctx.Device().Driver().Kind(), Access: ReadWrite, Name: "data", Capabilities: wire.TakesLegacy})))
	require.Equal(t, wire.Revoke{Text: "the memory is not there any more"}, heard(t, conn), "nobody is given the handle")
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrMemoryGone)

	c := start(t, "consumer", srv.Path(), "")
	require.Error(t, c.cmd.Wait(), "it does not attach")
	s.await(t, Ended, 2)
	s.cancel()
	require.NoError(t, s.end(t))
	require.ErrorIs(t, srv.OfferLegacy(soon(t), "again", m), ErrMemoryGone)
	require.NoError(t, m.Close())

	require.Equal(t, wire.Revoke{Text: "the memory is not there any more"}, answerAfterFree(t, srv, ctx))
}

// answerAfterFree is what a consumer hears that says it has opened memory which was
// freed and replaced meanwhile.
func answerAfterFree(t *testing.T, srv *Server, ctx *cu.Context) wire.Message {
	t.Helper()
	mem, err := ctx.Alloc(legacyUnit)
	require.NoError(t, err)
	m, err := LegacyAt(ctx, mem.Ptr(), legacyUnit)
	require.NoError(t, err)
	s := serveLegacy(t, srv, m)
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Attach{Driver: ctx.Device().Driver().Kind(), Access: ReadWrite, Name: "data", Capabilities: wire.TakesLegacy})))
	require.NotNil(t, heard(t, conn).(wire.Offer).Legacy)
	require.NoError(t, mem.Close())
	other, err := ctx.Alloc(legacyUnit)
	require.NoError(t, err)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Mapped{Generation: m.Generation()})))
	answer := heard(t, conn)
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrMemoryGone)
	s.cancel()
	require.NoError(t, s.end(t))
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
			_, err := attachAny(soon(t), impostor(t, c.script), "data", dev)
			require.ErrorIs(t, err, c.want)
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
		att, err := attachAny(soon(t), impostor(t, confirming(t, tr, yes)), "data", dev)
		require.NoError(t, err)
		requireNoiseAt(t, ctx, att.Ptr(), 1<<20, 1)
		require.NoError(t, att.Close())
	})
}

// Who gives up has closed the memory before it says so: the producer may free it then.
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
		_, err := attachAny(soon(t), impostor(t, tell(t, lie{wire.Encode(tr), nil})), "data", dev, WithMaxSize(1<<20))
		require.ErrorIs(t, err, ErrTooLarge)
	})
	t.Run("not wanted", func(t *testing.T) {
		_, err := attachAny(soon(t), impostor(t, tell(t, lie{wire.Encode(tr), nil})), "data", dev, WithHandle(HandleFD))
		require.ErrorIs(t, err, ErrHandle)
	})
}

// FAULTS 13, on the wire: the old handle, after its owner has other memory at the
// address. If it opens at all, nobody confirms it.
func TestFault13_OldLegacyHandle(t *testing.T) {
	dev, _ := leavesNothing(t)
	tr, c := legacyTruth(t, dev)
	_, err := c.in.(interface{ Write([]byte) (int, error) }).Write([]byte("again\n"))
	require.NoError(t, err)
	require.True(t, c.out.Scan())
	t.Logf("the handle was %s and is %s", tr.Legacy.Handle, c.out.Text())
	_, err = attachAny(soon(t), impostor(t, confirming(t, tr, wire.Revoke{Text: "freed"})), "data", dev)
	if !errors.Is(err, cu.ErrInvalidValue) { // it opens nothing, or what the producer then takes back
		require.ErrorIs(t, err, ErrRevoked)
	}
	t.Log(err)
}

// A handle is for other processes.
func TestLegacyOfOneself(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t)
	s := serveLegacy(t, srv, newLegacy(t, ctx, 4096))
	_, err := attachAny(soon(t), srv.Path(), "data", dev)
	require.ErrorIs(t, err, cu.ErrInvalidContext)
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrVerdict)
	_, err = Attach(soon(t), srv.Path(), "data", dev)
	require.ErrorIs(t, err, ErrUnsupported, "nobody gets legacy memory who has not asked for it")
	require.ErrorContains(t, err, "legacy handle")
	require.ErrorContains(t, s.await(t, PeerRefused, 1).Err, "legacy handle")
}

func TestHandleThatIsNotWanted(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t)
	s := serve(t, srv, newBuffer(t, ctx, 1))
	_, err := attachAny(soon(t), srv.Path(), "data", dev, WithHandle(HandleLegacy))
	require.ErrorIs(t, err, ErrHandle)
	require.ErrorIs(t, s.await(t, Ended, 1).Err, ErrVerdict)
	require.NoError(t, attached(t, srv, "data", dev, WithHandle(HandleFD)).Close())
}

// FAULTS 5, 6, of legacy memory: the producer notices, may free, and serves the next.
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
			s.cancel()
			require.NoError(t, s.end(t))
			require.NoError(t, m.Close())
		})
	}
}

// FAULTS 2, 3, of legacy memory: before the memory is confirmed nobody is attached to
// it; after that it stays, and its end is noticed.
func TestLegacyProducerKilled(t *testing.T) {
	for _, when := range []string{"received", "opened", "attached"} {
		t.Run(when, func(t *testing.T) {
			dev, ctx := leavesNothing(t)
			path := socketPath(t)
			c := start(t, "legacy producer", path, "3145728")
			c.says(t, "listening")
			kill := func(step string) {
				if step == when {
					c.kill()
				}
			}
			att, err := attachAny(soon(t), path, "data", dev,
				OnReceived(func(Offer, []*os.File) { kill("received") }), OnStep(func(vmm.Step) { kill("opened") }))
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
	dev, _ := leavesNothing(t)
	path := socketPath(t)
	c := start(t, "legacy producer", path, "4096")
	c.says(t, "listening")
	_, err := attachAny(soon(t), path, "data", dev, WithTimeout(300*time.Millisecond),
		OnStep(func(vmm.Step) { c.stop(t) }))
	require.ErrorIs(t, err, ErrTimeout)
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGCONT))
	c.end(t)
}

// Closing and offering at once: either the offer is refused, or the memory stays.
func TestLegacyClosedWhileItIsOffered(t *testing.T) {
	_, ctx := leavesNothing(t)
	srv := listen(t)
	for range 50 {
		m, err := NewLegacy(ctx, 1)
		require.NoError(t, err)
		var wg sync.WaitGroup
		over, cancel := context.WithCancel(context.Background())
		wg.Go(func() {
			if err := srv.OfferLegacy(over, "data", m); err != nil {
				require.ErrorIs(t, err, ErrClosed)
			}
		})
		err = m.Close()
		if err != nil {
			require.ErrorIs(t, err, ErrInUse)
			_, err = ctx.PointerAttributes(m.Ptr())
			require.NoError(t, err)
		}
		cancel()
		wg.Wait()
		require.NoError(t, m.Close())
	}
}
