package share

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// A later program says what this one does not know: docs/wire.md, "How the format grows".
// The numbers are those that are never given out.
const (
	laterType     wire.Type = 0x7f00
	laterField    uint16    = 0x7f00
	requiredField uint16    = 0xff00
	ignorable     uint32    = 1
	lowerFlags    uint32    = 0xffff // ignorable, too, which means nothing with a known type
	upperFlag     uint32    = 1 << 16
)

// A field is a number and a value.
type field struct {
	number uint16
	value  string
}

// later is the record with flags, and with more fields at its end.
func later(record []byte, flags uint32, fields ...field) []byte {
	record = slices.Clone(record)
	for _, f := range fields {
		record = binary.LittleEndian.AppendUint16(record, f.number)
		record = binary.LittleEndian.AppendUint16(record, uint16(len(f.value)))
		record = append(record, f.value...)
	}
	binary.LittleEndian.PutUint32(record[8:], flags)
	binary.LittleEndian.PutUint32(record[12:], uint32(len(record)-16))
	return record
}

// invented is a record of a type that is not known. Its body has no fields.
func invented(flags uint32) []byte {
	return later(append(wire.Encode(wire.Unknown{Kind: laterType}), "invented"...), flags)
}

// more is the record with all that has to be ignored in it.
func more(record []byte) []byte {
	return later(record, lowerFlags, field{laterField, "later"}, field{laterField + 1, ""})
}

// A stranger is a record that has to be refused, and what the refusal names. It comes
// before an honest record, or instead of it.
type stranger struct {
	record  func(honest []byte) []byte
	instead bool
	names   string
}

// strangers are those in the place of a record of that type.
func strangers(honest wire.Type) map[string]stranger {
	return map[string]stranger{
		"type":                      {func([]byte) []byte { return invented(0) }, false, "type 32512"},
		"type with lower flags":     {func([]byte) []byte { return invented(lowerFlags - ignorable) }, false, "type 32512"},
		"flag of what is ignorable": {func([]byte) []byte { return invented(ignorable | upperFlag) }, false, "flags 0x10000 of type 32512"},
		"flag": {func(honest []byte) []byte { return later(honest, ignorable|upperFlag) }, true,
			"flags 0x10000 of " + honest.String()},
		"field": {func(honest []byte) []byte { return later(honest, 0, field{laterField, "x"}, field{requiredField, ""}) }, true,
			"field 65280"},
	}
}

// everywhere are the lines with a record between any two, and before the first.
func everywhere(lines []line, record []byte) (all []line) {
	for _, l := range lines {
		all = append(all, line{says: record}, l)
	}
	return all
}

// withMore are the lines with more in all that they say.
func withMore(lines []line) []line {
	lines = slices.Clone(lines)
	for i, l := range lines {
		if l.says != nil {
			lines[i].says = more(l.says)
		}
	}
	return lines
}

// A dialogue is what an honest producer says and hears. After so many lines its consumer is
// attached, or never. Then the offer is revoked.
type dialogue struct {
	lines    []line
	attached int
	fails    error // Attach, if it never is
}

const never = 99

// offeredBy reports whether the consumer has the whole offer before line i.
func (d dialogue) offeredBy(i int) bool {
	for _, l := range d.lines[:i] {
		if m, err := wire.Decode(l.says); err == nil {
			if o, ok := m.(wire.Offer); ok && (o.Legacy != nil || o.First+o.FDs == o.Memory.Chunks) {
				return true
			}
		}
	}
	return false
}

// dialogues are some in which there is every record that a producer says.
func dialogues(t *testing.T, ctx *cu.Context) map[string]dialogue {
	t.Helper()
	tr := truthOf(t, ctx)
	legacy, _ := legacyTruth(t, ctx.Device())
	first, second, pending := tr.Offer, tr.Offer, tr.Offer
	first.FDs = 2
	second.First, second.FDs = 2, 1
	pending.Pending = true
	g := tr.Memory.Generation
	working, mapped, end := say(wire.Progress{Done: 1, Total: 2}), hear(wire.Mapped{}), say(wire.Revoke{Text: "x"})
	return map[string]dialogue{
		"two records": {[]line{working, say(first, tr.files[:2]...), working, say(second, tr.files[2]), mapped, working, end}, 5, nil},
		"pending":     {[]line{say(pending, tr.files...), working, say(wire.Publish{Generation: g}), mapped, end}, 4, nil},
		"legacy": {[]line{working, say(legacy), mapped, working, say(wire.Confirm{Generation: legacy.Memory.Generation}), working, end},
			5, nil},
		"revoked":               {[]line{end}, never, ErrRevoked},
		"revoked between":       {[]line{say(first, tr.files[:2]...), end}, never, ErrRevoked},
		"revoked while pending": {[]line{say(pending, tr.files...), end}, never, ErrRevoked},
		"refused":               {[]line{say(wire.Refuse{Code: wire.RefusedUnsupported, Text: "x"})}, never, ErrRefused},
	}
}

// A consumer ignores what a later producer says that may be ignored, wherever it says so.
func TestConsumerIgnoresWhatItMay(t *testing.T) {
	dev, ctx := leavesNothing(t)
	for name, d := range dialogues(t, ctx) {
		for _, lines := range [][]line{d.lines, everywhere(withMore(d.lines), invented(lowerFlags))} {
			t.Run(name, func(t *testing.T) {
				path, became := producing(t, lines)
				att, err := attachAny(soon(t), path, "data", dev)
				if d.attached == never {
					require.ErrorIs(t, err, d.fails)
				} else {
					require.NoError(t, err)
					require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
					requireNoiseAt(t, ctx, att.Ptr(), att.Size(), 1)
				}
				require.NoError(t, att.Close())
				require.Equal(t, played{}, <-became, "there is nothing to be said")
			})
		}
	}
}

// failsAt returns the error of an attachment to a producer that says d up to line i, and then
// something bad.
func failsAt(t *testing.T, dev *cu.Device, path string, d dialogue, i int, opts ...AttachOptions) error {
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
			require.NotErrorIs(t, err, wire.ErrMalformed)
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
			require.ErrorIs(t, err, wire.ErrMalformed)
			require.ErrorContains(t, err, "type 32512 came with 1 descriptors")
		}
		require.NoError(t, p.err)
		requireTold(t, p.last, i >= d.attached, err)
	})
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
		path, became := producing(t, p.lines[:p.line], func(conn *sock.Conn) {
			for n := 0; n < 10000 && conn.Send(soon(t), invented(ignorable)) == nil; n++ {
			}
		})
		err := failsAt(t, dev, path, p.dialogue, p.line, AttachOptions{peer: func(o *serve.PeerOptions) { o.Rate, o.Goodbye = 30, brief }})
		require.ErrorIs(t, err, serve.ErrRate)
		told := <-became
		require.NoError(t, told.err)
		require.Equal(t, serve.Refusal(err), told.last)
		require.Equal(t, wire.RefusedRate, told.last.(wire.Refuse).Code)
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
		require.ErrorIs(t, failsAt(t, dev, path, p.dialogue, p.line, AttachOptions{Timeout: brief}), ErrTimeout)
		require.NoError(t, (<-became).err)
		require.True(t, <-gone, "before it was let alone")
	})
}

// Nobody answers a refusal, also where its code is one of those that a refusal would have.
func TestRefusalByNameIsNotAnswered(t *testing.T) {
	dev, ctx := leavesNothing(t)
	no := say(wire.Refuse{Code: wire.RefusedUnsupported, Text: "type 7"})
	eachPlace(t, dialogues(t, ctx), func(t *testing.T, d dialogue, i int) {
		path, became := producing(t, append(slices.Clone(d.lines[:i]), no))
		err := failsAt(t, dev, path, d, i)
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorIs(t, err, ErrUnsupported)
		require.Equal(t, played{}, <-became)
	})
}

// A server refuses by name what it would have to understand, wherever a consumer says that, and
// ignores what may be ignored.
func TestServerRefusesByName(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	s := put(t, srv, buf, OfferOptions{Verdict: true})
	lines := []line{say(wants(dev)), hear(wire.Offer{}), say(isMapped(buf)), say(wire.Verdict{OK: true})}
	for _, i := range []int{0, 2, 3} {
		for what, strange := range strangers(lines[i].typ()) {
			conn := dialed(t, srv)
			require.NoError(t, play(soon(t), conn, append(lines[:i:i], line{says: strange.record(lines[i].says)})))
			no := heard(t, conn).(wire.Refuse)
			require.Equal(t, wire.RefusedUnsupported, no.Code, what)
			require.Contains(t, no.Text, strange.names)
			require.NoError(t, conn.Close())
		}
	}
	require.Empty(t, s.of(Verdict))
	conn := dialed(t, srv)
	require.NoError(t, play(soon(t), conn, everywhere(withMore(lines), invented(lowerFlags))))
	require.Nil(t, ok(verdictOf(soon(t), conn))(t), "there is nothing to be said")
	s.await(t, Verdict, 1)
	requireServed(t, srv, ctx)
}

// A line is one step of a conversation by hand: it says a record, hears one of that type, or
// does something.
type line struct {
	says  []byte
	files []*os.File
	hears wire.Type
	does  func(*sock.Conn)
}

func say(m wire.Message, files ...*os.File) line { return line{says: wire.Encode(m), files: files} }

func hear(m wire.Message) line { return line{hears: m.Type()} }

func do(f func(*sock.Conn)) line { return line{does: f} }

// typ is the type of the record that the line says or hears.
func (l line) typ() wire.Type {
	if l.says == nil {
		return l.hears
	}
	return wire.Type(binary.LittleEndian.Uint16(l.says[6:]))
}

// play is one side of a conversation, to the end of lines.
func play(ctx context.Context, conn *sock.Conn, lines []line) error {
	for i, l := range lines {
		if err := l.play(ctx, conn); err != nil {
			return fmt.Errorf("line %d: %w", i, err)
		}
	}
	return nil
}

func (l line) play(ctx context.Context, conn *sock.Conn) error {
	if l.does != nil {
		l.does(conn)
		return nil
	}
	if l.says != nil {
		return conn.Send(ctx, l.says, l.files...)
	}
	rec, err := conn.Receive(ctx)
	if err != nil {
		return err
	}
	m, err := wire.Decode(rec.Data)
	if err == nil && m.Type() != l.hears {
		err = fmt.Errorf("heard %#v and not %s", m, l.hears)
	}
	return errors.Join(err, rec.Close())
}

// played is what became of lines that a producer was to play, and the last that it heard
// after them.
type played struct {
	err  error
	last wire.Message
}

// verdictOf is what a consumer says in the end, or nil if it just goes. It waits for its
// producer to close then.
func verdictOf(ctx context.Context, conn *sock.Conn) (wire.Message, error) {
	for {
		rec, err := conn.Receive(ctx)
		if errors.Is(err, sock.ErrPeerLost) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		_ = rec.Close()
		m, err := wire.Decode(rec.Data)
		switch m.(type) {
		case nil, wire.Verdict, wire.Refuse:
			return m, err
		}
	}
}

// producing is a producer that plays lines, and then hears its consumer out.
func producing(t *testing.T, lines []line, then ...func(*sock.Conn)) (path string, became <-chan played) {
	c := make(chan played, 1)
	return impostor(t, func(conn *sock.Conn) {
		p := played{err: play(soon(t), conn, lines)}
		if p.err == nil {
			for _, f := range then {
				f(conn)
			}
			p.last, p.err = verdictOf(soon(t), conn)
		}
		c <- p
	}), c
}

// FAULTS 31: whoever says twice that it has mapped the memory is not believed.
func TestFault31_MappedIsSaidOnce(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1)
	s := put(t, srv, buf)
	conn, mapped := dialed(t, srv), say(isMapped(buf))
	require.NoError(t, play(soon(t), conn, []line{say(wants(dev)), hear(wire.Offer{}), mapped, mapped}))
	requireRefusal(t, conn, wire.RefusedRecord, "mapped twice")
	require.NoError(t, conn.Close())
	require.ErrorIs(t, s.await(t, Ended, 1).Err, serve.ErrUnexpected)
	require.Len(t, s.of(Mapped), 1)
}

// Invariant 2: a producer that takes nothing more and keeps the connection open
// is as good as gone. Nobody waits for it without end.
func TestProducerThatOnlySends(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	deaf, over := make(chan error), make(chan struct{})
	stop := do(func(conn *sock.Conn) {
		f, err := conn.File()
		if err == nil {
			err = errors.Join(unix.Shutdown(int(f.Fd()), unix.SHUT_RD), f.Close())
		}
		deaf <- err
		<-over
	})
	path, _ := producing(t, []line{say(tr.Offer, tr.files...), hear(wire.Mapped{}), stop})
	att := ok(Attach(soon(t), path, "data", dev, &AttachOptions{peer: goodbyes(brief)}))(t)
	require.NoError(t, <-deaf)
	require.ErrorIs(t, att.Progress(soon(t), 1, 2), sock.ErrPeerLost)
	require.ErrorIs(t, awaitDone(t, att), sock.ErrPeerLost)
	require.ErrorIs(t, att.Report(soon(t), nil), sock.ErrPeerLost)
	close(over)
	requireNoise(t, ctx, att.Buffer(), 1)
	require.NoError(t, att.Close())
}

// A consumer that takes nothing more and keeps the connection open is as good as gone, too.
func TestConsumerThatOnlySends(t *testing.T) {
	_, ctx := leavesNothing(t)
	decide := make(chan error)
	srv := listen(t, ListenOptions{Authorize: func(sock.Peer, OfferInfo) error { return <-decide }, peer: goodbyes(brief)})
	s := put(t, srv, newBuffer(t, ctx, 1))
	conn := asked(t, srv, wants(ctx.Device()))
	f := ok(conn.File())(t)
	require.NoError(t, unix.Shutdown(int(f.Fd()), unix.SHUT_RD))
	require.NoError(t, f.Close())
	decide <- nil
	require.ErrorIs(t, s.await(t, Ended, 1).Err, sock.ErrPeerLost)
	require.NoError(t, conn.Close())
}

// A record that a server ignores does not make it wait any longer.
func TestServerWaitsNoLongerForWhatItIgnores(t *testing.T) {
	_, ctx, srv := listening(t, ListenOptions{Timeout: brief})
	s := put(t, srv, newBuffer(t, ctx, 1))
	require.True(t, insist(soon(t), dialed(t, srv)), "before it was let alone")
	require.ErrorIs(t, s.await(t, PeerRefused, 1).Err, ErrTimeout)
}
