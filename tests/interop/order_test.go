package interop

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/counter"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// The program in Python that takes turns with this process: see its own words.
var pyTurns = peer{name: "turns.py"}

// turnSize is what is written in a turn, not all of the last integer of it.
const turnSize = 100003

// A turner is this process' side of the turns: the one that begins them.
type turner struct {
	t      *testing.T
	ctx    *cu.Context
	stream *cu.Stream
	data   cu.DevicePtr
}

func newTurner(t *testing.T, data cu.DevicePtr) *turner {
	t.Helper()
	ctx := cutest.Context(t, cutest.Device(t))
	stream := ok(ctx.NewStream())(t)
	t.Cleanup(func() { require.NoError(t, stream.Close()) })
	return &turner{t, ctx, stream, data}
}

// write begins turn n. It is queued, and not waited for.
func (p *turner) write(n uint64) {
	p.t.Helper()
	b := make([]byte, turnSize)
	pattern.Fill(b, 0, uint32(2*n-1))
	require.NoError(p.t, errors.Join(cu.CopyToDeviceAsync(p.stream, p.data, b), p.stream.Synchronize(context.Background())))
}

// read ends it.
func (p *turner) read(n uint64) {
	p.t.Helper()
	b := make([]byte, turnSize)
	require.NoError(p.t, errors.Join(cu.CopyToHostAsync(p.stream, b, p.data), p.stream.Synchronize(context.Background())))
	require.NoError(p.t, p.stream.Synchronize(p.t.Context()))
	require.Zero(p.t, pattern.Check(b, 0, uint32(2*n)), "turn %d", n)
}

// byCounters takes the turns by counters: slot 0 is ours to wait at, if we offer.
func (p *turner) byCounters(ours, theirs *counter.Counter, turns uint64) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), programs.Patience)
	defer cancel()
	for n := uint64(1); n <= turns; n++ {
		p.write(n)
		require.NoError(p.t, theirs.Signal(p.stream, n))
		w, err := ours.Wait(ctx, p.stream, n)
		require.NoError(p.t, err)
		require.NoError(p.t, p.stream.Synchronize(p.t.Context()))
		require.NoError(p.t, w.Result(), "turn %d", n) // who was given up reads nonsense
		p.read(n)
	}
}

// counters are those of the two slots of a control chunk.
func (p *turner) counters(control *vmm.Buffer) (zero, one *counter.Counter) {
	p.t.Helper()
	for slot, c := range []**counter.Counter{&zero, &one} {
		var err error
		*c, err = counter.New(p.ctx, control, slot)
		require.NoError(p.t, err)
		p.t.Cleanup(func() { require.NoError(p.t, (*c).Close()) })
	}
	return zero, one
}

// offering serves a buffer until the test ends. It returns when the offer stands: until then
// Offer waits for queued work, which may itself wait for a counter.
func offering(t *testing.T, srv *share.Server, name string, size uint64, data ...byte) *vmm.Buffer {
	t.Helper()
	buf := ok(vmm.New(cutest.Device(t), size))(t)
	ctx := cutest.Context(t, cutest.Device(t))
	require.NoError(t, cu.Fill(ctx, buf.Ptr(), uint8(0), size))
	require.NoError(t, ctx.Synchronize(t.Context()))
	offer := ok(srv.Offer(name, buf, &share.OfferOptions{Access: cu.ReadWrite, Pending: true, Data: data}))(t)
	require.NoError(t, offer.Publish(t.Context()))
	t.Cleanup(func() { require.NoError(t, errors.Join(offer.Close(), buf.Close())) })
	return buf
}

// listening is a server of this process' on the scene's socket.
func listening(s *programs.Scene) *share.Server {
	s.T.Helper()
	srv, err := share.Listen(s.Socket, nil)
	require.NoError(s.T, err)
	s.T.Cleanup(func() { require.NoError(s.T, srv.Close()) })
	return srv
}

// TestInteropCounter: streams here and a program in Python take turns on memory by
// counters in a control chunk, whoever offers the two.
func TestInteropCounter(t *testing.T) {
	programs.Parallel(t)
	pyTurns.command(t)
	t.Run("Python attaches", func(t *testing.T) {
		s := programs.Meeting(t)
		srv := listening(s)
		data, control := offering(t, srv, "data", turnSize), offering(t, srv, "control", 2*counter.Stride)
		p := newTurner(t, data.Ptr())
		zero, one := p.counters(control)
		py := startPeer(s, pyTurns, "attach")
		p.byCounters(zero, one, 20)
		py.Succeeds()
	})
	t.Run("Python offers", func(t *testing.T) {
		s := programs.Meeting(t)
		py := startPeer(s, pyTurns, "offer")
		py.WaitLine("Waiting for the other side...")
		data := attachTo(t, s.Socket, "data")
		control := attachTo(t, s.Socket+".control", "control")
		p := newTurner(t, data.Ptr())
		zero, one := p.counters(control.Buffer())
		ctx, cancel := context.WithTimeout(t.Context(), programs.Patience)
		defer cancel()
		for n := uint64(1); n <= 20; n++ {
			w := ok(one.Wait(ctx, p.stream, n))(t)
			b := make([]byte, turnSize)
			require.NoError(t, errors.Join(cu.CopyToHostAsync(p.stream, b, p.data), p.stream.Synchronize(t.Context())))
			require.NoError(t, p.stream.Synchronize(ctx))
			require.NoError(t, w.Result())
			require.Zero(t, pattern.Check(b, 0, uint32(2*n-1)), "turn %d", n)
			pattern.Fill(b, 0, uint32(2*n))
			require.NoError(t, errors.Join(cu.CopyToDeviceAsync(p.stream, p.data, b), p.stream.Synchronize(t.Context())))
			require.NoError(t, zero.Signal(p.stream, n))
		}
		require.NoError(t, p.stream.Synchronize(ctx))
		programs.Report(t, data, nil)
		programs.Report(t, control, nil)
		py.Succeeds()
	})
}

// attachTo is an attachment, read-write, to another program's offer.
func attachTo(t *testing.T, socket, name string) *share.Attachment {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), programs.Patience)
	defer cancel()
	att := ok(share.Attach(ctx, socket, name, cutest.Device(t), &share.AttachOptions{Access: cu.ReadWrite}))(t)
	t.Cleanup(func() { require.NoError(t, att.Close()) })
	return att
}

// TestInteropCounterGivenUp: who waits in vain ends in time, in either language, and
// leaves in its slot that it has given it up; a process that is killed frees nobody.
func TestInteropCounterGivenUp(t *testing.T) {
	programs.Parallel(t)
	pyTurns.command(t)
	t.Run("Python waits in vain", func(t *testing.T) {
		s := programs.Meeting(t)
		srv := listening(s)
		offering(t, srv, "data", turnSize)
		control := offering(t, srv, "control", 2*counter.Stride)
		startPeer(s, pyTurns, "attach", "-timeout", "6s").Fails(4, "counter 1 took longer than 6 s")
		require.EqualValues(t, math.MaxInt64, numberIn(t, control, 1))
		require.Zero(t, numberIn(t, control, 0))
	})
	t.Run("Python is killed", func(t *testing.T) {
		s := programs.Meeting(t)
		srv := listening(s)
		data, control := offering(t, srv, "data", turnSize), offering(t, srv, "control", 2*counter.Stride)
		p := newTurner(t, data.Ptr())
		zero, _ := p.counters(control)
		py := startPeer(s, pyTurns, "attach")
		py.WaitLine("Attached")
		limited, cancel := context.WithCancelCause(t.Context())
		w := ok(zero.Wait(limited, p.stream, 1))(t)
		py.Kill()
		cancel(fmt.Errorf("%s is gone", py.Name))
		require.ErrorIs(t, w.Result(), cu.ErrGivenUp)
		require.NoError(t, p.stream.Synchronize(t.Context()))
		require.EqualValues(t, math.MaxInt64, numberIn(t, control, 0))
	})
	t.Run("what was written is wrong", func(t *testing.T) {
		s := programs.Meeting(t)
		srv := listening(s)
		data, control := offering(t, srv, "data", turnSize), offering(t, srv, "control", 2*counter.Stride)
		p := newTurner(t, data.Ptr())
		_, one := p.counters(control)
		require.NoError(t, one.Signal(p.stream, 1)) // without having written
		startPeer(s, pyTurns, "attach").Fails(1, "data differs: first at index 0", "(salt 1)")
	})
}

// numberIn is the number in a slot of a control chunk.
func numberIn(t *testing.T, control *vmm.Buffer, slot uint64) uint64 {
	t.Helper()
	ctx := cutest.Context(t, cutest.Device(t))
	b := make([]byte, 8)
	require.NoError(t, cu.CopyToHost(ctx, b, control.Ptr().Add(slot*counter.Stride)))
	return binary.LittleEndian.Uint64(b)
}

// TestInteropIPCEventSoftware: a program without the software driver cannot open its events,
// and says what does.
func TestInteropIPCEventSoftware(t *testing.T) {
	programs.Parallel(t)
	if cutest.Kind() != cu.Soft {
		t.Skip("the software driver's own")
	}
	pyTurns.command(t)
	s := programs.Meeting(t)
	offering(t, listening(s), "data", turnSize, make([]byte, 64)...)
	startPeer(s, pyTurns, "attach", "-by", "event").Fails(3, "IPC events of the software driver are for its own processes", "order by a counter")
	startPeer(s, pyTurns, "offer", "-by", "event").Fails(2, "--by event is for attach")
}

// TestInteropIPCEvent: the same by events of legacy IPC, one of either process, each of which
// the other waits for on the host.
func TestInteropIPCEvent(t *testing.T) {
	programs.Parallel(t)
	programs.SkipOnSoft(t, "an IPC event of the software driver is for its own processes")
	pyTurns.command(t)
	s := programs.Meeting(t)
	ctx := cutest.Context(t, cutest.Device(t))
	ours := ok(ctx.NewEvent(cu.EventInterprocess | cu.EventDisableTiming))(t)
	h := ok(ours.IPCHandle())(t)
	defer func() { require.NoError(t, ours.Close()) }()
	data := offering(t, listening(s), "data", turnSize, h[:]...)
	p := newTurner(t, data.Ptr())
	py := startPeer(s, pyTurns, "attach", "-by", "event", "-turns", "20")
	var theirs cu.IPCEventHandle
	require.NoError(t, theirs.UnmarshalText([]byte(strings.TrimPrefix(py.WaitLine("Event "), "Event "))))
	opened := ok(ctx.OpenIPCEvent(theirs))(t)
	defer func() { require.NoError(t, opened.Close()) }()
	soon, cancel := context.WithTimeout(t.Context(), programs.Patience)
	defer cancel()
	for n := uint64(1); n <= 20; n++ {
		p.write(n)
		require.NoError(t, ours.Record(p.stream))
		require.NoError(t, errOf(io.WriteString(py.In, "go\n")))
		py.WaitLines("Turn ", int(n))
		require.NoError(t, opened.Synchronize(soon))
		p.read(n)
	}
	require.NoError(t, errOf(io.WriteString(py.In, "go\n")))
	py.Succeeds()
}
