package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
)

// A consumer ignores what a later producer says that may be ignored, wherever it says so.
func TestConsumerIgnoresWhatItMay(t *testing.T) {
	_, ctx := leavesNothing(t)
	for name, d := range dialogues(t, ctx) {
		t.Run(name, func(t *testing.T) {
			requireAsHonest(t, ctx, d, d.lines)
			requireAsHonest(t, ctx, d, withMore(d.lines))
			for i := range d.lines {
				requireAsHonest(t, ctx, d, slices.Insert(slices.Clone(d.lines), i, line{says: invented(ignorable)}))
			}
			requireAsHonest(t, ctx, d, everywhere(withMore(d.lines), invented(lowerFlags)))
		})
	}
}

// failsAt returns the error of an attachment to a producer that says d up to line i, and then
// something bad.
func failsAt(t *testing.T, dev *cu.Device, path string, d dialogue, i int, opts ...AttachOption) error {
	t.Helper()
	att, err := attachAny(soon(t), path, "data", dev, opts...)
	if i >= d.attached {
		require.NoError(t, err)
		err = awaitDone(t, att)
	}
	require.NoError(t, att.Close())
	return err
}

// eachPlace runs f for each thing that d says, and where it is.
func eachPlace(t *testing.T, all map[string]dialogue, f func(t *testing.T, d dialogue, i int)) {
	for name, d := range all {
		for i, l := range d.lines {
			if l.says != nil {
				t.Run(fmt.Sprintf("%s, %d", name, i), func(t *testing.T) { f(t, d, i) })
			}
		}
	}
}

// A consumer does not go on without what it would have to understand, wherever that comes: it
// names that to its caller and to the producer, and leaves nothing behind.
func TestConsumerRefusesByName(t *testing.T) {
	dev, ctx := leavesNothing(t)
	eachPlace(t, dialogues(t, ctx), func(t *testing.T, d dialogue, i int) {
		for what, s := range strangers(d.lines[i].typ()) {
			bad := line{says: s.record(d.lines[i].says)}
			if s.instead {
				bad.files = d.lines[i].files
			}
			path, became := producing(t, append(slices.Clone(d.lines[:i]), bad))
			err := failsAt(t, dev, path, d, i)
			require.ErrorIs(t, err, ErrUnsupported, what)
			require.NotErrorIs(t, err, ErrWire)
			require.ErrorContains(t, err, s.names)
			p := <-became
			require.NoError(t, p.err)
			requireTold(t, p.last, i >= d.attached, err)
		}
	})
}

// requireTold checks that last tells a producer of err: by VERDICT 0 until the consumer is
// attached, and by REFUSE from then on.
func requireTold(t *testing.T, last wire.Message, attached bool, err error) {
	t.Helper()
	if attached {
		require.Equal(t, serve.Refusal(err), last)
		return
	}
	require.Equal(t, wire.Verdict{Text: "attaching failed: " + err.Error()}, last)
}

// A record that may be ignored brings no descriptors: to ignore these would be to close what
// a peer may have made to close slowly.
func TestConsumerTakesNoDescriptorsWithWhatItIgnores(t *testing.T) {
	dev, ctx := leavesNothing(t)
	null := ok(os.Open(os.DevNull))(t)
	defer null.Close()
	eachPlace(t, dialogues(t, ctx), func(t *testing.T, d dialogue, i int) {
		bad := line{says: invented(ignorable), files: []*os.File{null}}
		path, became := producing(t, append(slices.Clone(d.lines[:i]), bad))
		err := failsAt(t, dev, path, d, i)
		p := <-became
		switch {
		case errors.Is(p.err, unix.EPERM): // the kernel keeps them from a consumer that has the offer
			require.True(t, d.offeredBy(i))
			require.ErrorIs(t, err, sock.ErrPeerLost)
			return
		case d.offeredBy(i) && errors.Is(err, sock.ErrTooManyFDs): // it came before the kernel was told, or cannot be
		default:
			require.ErrorIs(t, err, ErrWire)
			require.ErrorContains(t, err, "type 32512 came with 1 descriptors")
		}
		require.NoError(t, p.err)
		requireTold(t, p.last, i >= d.attached, err)
	})
}

// floodIgnored sends n records that may be ignored, as fast as they are taken.
func floodIgnored(ctx context.Context, conn *sock.Conn, n int) {
	for range n {
		if conn.Send(ctx, invented(ignorable)) != nil {
			return
		}
	}
}

// insist sends records that may be ignored, too few for a flood, and says whether the peer has
// gone before ctx was done.
func insist(ctx context.Context, conn *sock.Conn) (gone bool) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		if errors.Is(conn.Send(ctx, invented(ignorable)), sock.ErrPeerLost) {
			return true
		}
		<-tick.C
	}
	return false
}

// A place is a line of a dialogue, before which something else comes.
type place struct {
	dialogue
	line int
}

// waitedFor are the places where a consumer waits for its producer.
func waitedFor(t *testing.T, ctx *cu.Context) map[string]place {
	all := dialogues(t, ctx)
	return map[string]place{
		"the offer": {all["two records"], 0}, "the rest of it": {all["two records"], 3}, "the data": {all["pending"], 2},
		"the confirmation": {all["legacy"], 4}, "nothing": {all["two records"], 6},
	}
}

// Records that a consumer ignores count towards the rate, so it leaves a producer that floods it
// with them, wherever they come.
func TestConsumerLeavesAFloodOfWhatItIgnores(t *testing.T) {
	dev, ctx := leavesNothing(t)
	sideBySide(t, waitedFor(t, ctx), func(t *testing.T, _ string, p place) {
		path, became := producing(t, p.lines[:p.line], func(conn *sock.Conn) { floodIgnored(soon(t), conn, 10000) })
		err := failsAt(t, dev, path, p.dialogue, p.line, WithRecordRate(30), attachOption(func(o *attachOptions) { o.Goodbye = brief }))
		require.ErrorIs(t, err, ErrRate)
		told := <-became
		require.NoError(t, told.err)
		require.Equal(t, serve.Refusal(err), told.last)
		require.Equal(t, RefusedRate, told.last.(wire.Refuse).Code)
	})
}

// A record that a consumer ignores does not make it wait any longer.
func TestConsumerWaitsNoLongerForWhatItIgnores(t *testing.T) {
	dev, ctx := leavesNothing(t)
	places := waitedFor(t, ctx)
	delete(places, "nothing")
	sideBySide(t, places, func(t *testing.T, _ string, p place) {
		gone := make(chan bool, 1)
		path, became := producing(t, p.lines[:p.line], func(conn *sock.Conn) { gone <- insist(soon(t), conn) })
		require.ErrorIs(t, failsAt(t, dev, path, p.dialogue, p.line, WithTimeout(brief)), ErrTimeout)
		require.NoError(t, (<-became).err)
		require.True(t, <-gone, "before it was let alone")
	})
}

// A consumer of this version ignores what a producer says that it takes.
func TestConsumerIgnoresCapabilities(t *testing.T) {
	_, ctx := leavesNothing(t)
	d := dialogues(t, ctx)["two records"]
	for i, l := range d.lines {
		if typ := l.typ(); typ == wire.TypeOffer || typ == wire.TypeProgress {
			d.lines[i].says = later(l.says, 0, field{1, strings.Repeat(string(rune(i+1)), 8+i)}, field{0x7f00, ""})
		}
	}
	requireAsHonest(t, ctx, d, d.lines)
}

// Nobody answers a refusal, also where its code is one of those that a refusal would have.
func TestRefusalByNameIsNotAnswered(t *testing.T) {
	dev, ctx := leavesNothing(t)
	no := say(wire.Refuse{Code: RefusedUnsupported, Text: "type 7"})
	eachPlace(t, dialogues(t, ctx), func(t *testing.T, d dialogue, i int) {
		path, became := producing(t, append(slices.Clone(d.lines[:i]), no))
		err := failsAt(t, dev, path, d, i)
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorIs(t, err, ErrUnsupported)
		require.Equal(t, played{}, <-became)
	})
}

// A visit is what an honest consumer says and hears, to its good verdict. After so many lines
// it has a lease.
type visit struct {
	lines  []line
	leased int
	offer  *served // that it has a lease of
}
