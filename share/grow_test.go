package share

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
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
		"refused":               {[]line{say(wire.Refuse{Code: RefusedUnsupported, Text: "x"})}, never, ErrRefused},
	}
}

// requireAsHonest checks that a consumer takes lines for what d says.
func requireAsHonest(t *testing.T, ctx *cu.Context, d dialogue, lines []line) {
	t.Helper()
	path, became := producing(t, lines)
	att, err := attachAny(soon(t), path, "data", ctx.Device())
	if d.fails != nil {
		require.ErrorIs(t, err, d.fails)
	} else {
		require.NoError(t, err)
		require.ErrorIs(t, awaitDone(t, att), ErrRevoked)
		requireNoiseAt(t, ctx, att.Ptr(), att.Size(), 1)
	}
	require.NoError(t, att.Close())
	p := <-became
	require.NoError(t, p.err)
	require.Nil(t, p.last, "there is nothing to be said")
}
