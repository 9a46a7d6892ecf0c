package server

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv/leak"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

func record(piece byte, text string) []byte { return append([]byte{piece}, text...) }

// A client that sends something else than a message is disconnected, and all others are served.
func TestMalformedMessages(t *testing.T) {
	_, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	before := leak.OpenFDs().Kinds()
	for name, records := range map[string][][]byte{
		"no JSON":      {record(protocol.PieceLast, "{")},
		"no such mark": {record(2, "{}")},
		"empty":        {record(protocol.PieceLast, "")},
		"without end":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := sock.Dial(soon(t), c.socket+protocol.ControlSuffix)
			require.NoError(t, err)
			if name == "without end" {
				piece := record(protocol.PieceMore, strings.Repeat(" ", protocol.MaxPiece))
				for err == nil {
					err = conn.Send(soon(t), piece)
				}
				require.ErrorIs(t, err, sock.ErrPeerLost)
			} else {
				for _, r := range records {
					require.NoError(t, conn.Send(soon(t), r))
				}
				_, err = conn.Receive(soon(t))
				require.ErrorIs(t, err, sock.ErrPeerLost)
			}
			require.NoError(t, conn.Close())
		})
	}
	require.Equal(t, uint64(1), stat(t, c, "x").Version)
	require.Eventually(t, func() bool {
		for kind, n := range leak.OpenFDs().Kinds() {
			if n > before[kind] { // it may be less: the server may not yet have closed those of put
				return false
			}
		}
		return true
	}, waitLong, waitStep)
}

// A request that makes no sense is refused, and the client may go on.
func TestRequestsThatAreRefused(t *testing.T) {
	s, c, dev := kept(t)
	b := bookingOf(t, c, dev, 2)
	for _, r := range []struct {
		code string
		ask  protocol.Request
	}{
		{"bad-request", protocol.Request{Op: "dance"}},
		{"bad-request", protocol.Request{}},
		{"unsupported", protocol.Request{Op: protocol.OpStatus, Needs: []string{"magic"}}},
		{"bad-request", protocol.Request{Op: protocol.OpBook, Name: "x", Parts: 1, Bytes: 1, Device: "7"}},
		{"bad-request", protocol.Request{Op: protocol.OpBook, Name: "x", Parts: 1, Bytes: 1, Device: dev.UUID().String(), Kind: "wood"}},
		{"bad-request", protocol.Request{Op: protocol.OpBook, Name: "x", Parts: 1, Device: dev.UUID().String(), Kind: "soft"}},
		{"bad-request", protocol.Request{Op: protocol.OpBook, Name: "x\n", Parts: 1, Bytes: 1, Device: dev.UUID().String(), Kind: "soft"}},
		{"bad-request", protocol.Request{Op: protocol.OpBook, Name: "x", Parts: 1 << 40, Bytes: 1, Device: dev.UUID().String(), Kind: "soft"}},
		{"not-found", protocol.Request{Op: protocol.OpRenew, Ticket: "t0"}},
		{"not-found", protocol.Request{Op: protocol.OpCancel, Ticket: "t0"}},
		{"not-found", protocol.Request{Op: protocol.OpDeliver, Ticket: "t0"}},
		{"bad-request", protocol.Request{Op: protocol.OpDeliver, Ticket: b.Ticket}},
		{"bad-request", protocol.Request{Op: protocol.OpDeliver, Ticket: b.Ticket, Memory: &protocol.Memory{}}},
		{"bad-request", protocol.Request{Op: protocol.OpDeliver, Ticket: b.Ticket, Memory: &protocol.Memory{Size: small, ChunkSize: 2 << 20, Chunks: -1, Granularity: 2 << 20, Generation: 1}}},
		{"bad-request", protocol.Request{Op: protocol.OpDeliver, Ticket: b.Ticket, Memory: &protocol.Memory{Size: small, ChunkSize: 2 << 20, Chunks: 1, Granularity: 2 << 20, Generation: 1}}},
		{"bad-request", protocol.Request{Op: protocol.OpReport, Name: "x", Verdict: "lovely"}},
		{"bad-request", protocol.Request{Op: protocol.OpDrain, Device: "moon", On: true}},
		{"not-found", protocol.Request{Op: protocol.OpRemove, Name: "nobody"}},
	} {
		_, err := c.conn().Ask(soon(t), r.ask)
		requireCode(t, r.code, err)
	}
	require.ErrorIs(t, errOf(c.conn().Ask(soon(t), protocol.Request{Op: protocol.OpStatus, Reason: strings.Repeat("x", protocol.MaxMessage)})), protocol.ErrTooLong)
	require.NoError(t, b.Cancel(soon(t)))
	require.LessOrEqual(t, storeSets(s), 3)
}

// The client is told which member has the wrong type, and may go on.
func TestRequestsOfOtherTypes(t *testing.T) {
	_, c, dev := kept(t)
	conn := ok(sock.Dial(soon(t), c.socket+protocol.ControlSuffix))(t)
	defer func() { require.NoError(t, conn.Close()) }()
	ask := func(text string) (r protocol.Reply) {
		require.NoError(t, conn.Send(soon(t), record(protocol.PieceLast, text)))
		require.NoError(t, errOf(protocol.Receive(soon(t), conn, protocol.MaxReply, &r)), text)
		return r
	}
	for text, said := range map[string]string{
		`{"op":7}`:                                  "op of the request cannot be: number",
		`[]`:                                        "a request is a JSON object, and this is: array",
		`"status"`:                                  "a request is a JSON object, and this is: string",
		`{"op":"book","bytes":-1}`:                  "bytes of the request cannot be: number -1",
		`{"op":"book","bytes":1.5}`:                 "bytes of the request cannot be: number 1.5",
		`{"op":"book","bytes":1e999}`:               "bytes of the request cannot be: number 1e999",
		`{"op":"book","expect":"1"}`:                "expect of the request cannot be: string",
		`{"op":"book","name":["x"]}`:                "name of the request cannot be: array",
		`{"op":"book","name":{"x":1}}`:              "name of the request cannot be: object",
		`{"op":"book","transaction":5}`:             "transaction of the request cannot be: number",
		`{"op":"book","labels":{"step":3}}`:         "labels of the request cannot be: number",
		`{"op":"deliver","memory":[1]}`:             "memory of the request cannot be: array",
		`{"op":"drain","on":"no"}`:                  "on of the request cannot be: string",
		`{"op":"book","part":99999999999999999999}`: "part of the request cannot be: number 99999999999999999999",
	} {
		no := ask(text).Error
		require.NotNil(t, no, text)
		require.EqualValues(t, "bad-request", no.Code, text)
		require.Contains(t, no.Message, said)
	}
	require.NotNil(t, ask(`{"op":"status"}`).Status)
	put(t, c, dev, "x", 1)
}

func bookingOf(t testing.TB, c *client, dev *cu.Device, size uint64) *protocol.Booking {
	t.Helper()
	p := part(0, dev, 1)
	p.Size = size
	b := ok(c.book(soon(t), keeper.Put{Name: "booked", Parts: 1}, p, "tx"))(t)
	return b
}

// exported returns the descriptors of memory with a byte everywhere.
func exported(t testing.TB, dev *cu.Device) (vmm.Descriptor, []*os.File) {
	t.Helper()
	buf := ok(vmm.New(dev, small))(t)
	require.NoError(t, writeAll(1)(context.Background(), buf))
	d, files, err := buf.Export()
	require.NoError(t, err)
	require.NoError(t, buf.Close())
	t.Cleanup(func() { require.NoError(t, sock.CloseFiles(files)) })
	return d, files
}

func memoryFile(t testing.TB, content string, seals int) *os.File {
	t.Helper()
	fd := ok(unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))(t)
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	require.NoError(t, errOf(io.WriteString(f, content)))
	require.NoError(t, errOf(unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)))
	return f
}

// Descriptors that are no memory, too many or too few of them, tables that can be changed or
// are none: nothing of it reaches the store.
func TestHostileDescriptors(t *testing.T) {
	if cutest.Kind() != cu.Soft {
		t.Skip(cutest.Proven)
	}
	s, c, dev := kept(t)
	b := bookingOf(t, c, dev, small)
	d, files := exported(t, dev)
	const all = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	send := func(op string, files ...*os.File) error {
		_, err := c.conn().Ask(soon(t), protocol.Request{Op: op, Ticket: b.Ticket}, files...)
		return err
	}
	for _, f := range []*os.File{os.Stdin, memoryFile(t, "x", all)} {
		requireCode(t, "bad-request", send(protocol.OpFiles, f))
		requireCode(t, "bad-request", send(protocol.OpFiles, files[0], f))
	}
	requireCode(t, "bad-request", send(protocol.OpTable))
	requireCode(t, "bad-request", send(protocol.OpTable, files[0]))
	requireCode(t, "bad-request", send(protocol.OpTable, memoryFile(t, `{}`, 0)))
	requireCode(t, "bad-request", send(protocol.OpTable, memoryFile(t, `{}`, unix.F_SEAL_WRITE)))
	requireCode(t, "bad-request", send(protocol.OpTable, memoryFile(t, `{`, all)))
	require.NoError(t, send(protocol.OpTable, memoryFile(t, `{"a":1}`, all)))
	requireCode(t, "bad-request", send(protocol.OpTable, memoryFile(t, `{}`, all)))

	digest := "gpufd-d1:" + strings.Repeat("0", 32)
	deliver := func(size uint64, digest string) error {
		m := protocol.Describe(d)
		m.Size = size
		_, err := c.conn().Ask(soon(t), protocol.Request{Op: protocol.OpDeliver, Ticket: b.Ticket, Memory: m, Digest: digest})
		return err
	}
	requireCode(t, "bad-request", deliver(small, digest)) // no descriptors
	require.NoError(t, send(protocol.OpFiles, files...))
	requireCode(t, "bad-request", deliver(small-1, digest)) // not what was booked
	requireCode(t, "bad-request", deliver(small, "sha256:00"))
	require.NoError(t, send(protocol.OpFiles, files...))
	requireCode(t, "bad-request", deliver(small, digest)) // twice as many
	require.LessOrEqual(t, storeSets(s), 3)
	require.NoError(t, errOf(c.conn().Ask(soon(t), protocol.Request{Op: protocol.OpRenew, Ticket: b.Ticket})), "all comes again")
	require.NoError(t, send(protocol.OpFiles, files...))
	require.NoError(t, deliver(small, digest))
	same, err := c.conn().Ask(soon(t), protocol.Request{Op: protocol.OpDeliver, Ticket: b.Ticket})
	require.NoError(t, err, "who asks again hears the same")
	require.Equal(t, protocol.Reply{Version: 1, Delivered: true}, same)
	require.Equal(t, uint64(1), stat(t, c, "booked").Version)
	a := attach(t, c, dev, "booked")[0]
	got := ok(a.Digest(soon(t)))(t)
	require.NotEqual(t, digest, got, "a writer's lie about its own bytes is for readers to find")
}

// Nothing panics on a value that is nil, zero or closed.
func TestZero(t *testing.T) {
	require.ErrorContains(t, errOf(Open(soon(t), Options{})), "no socket")
	for _, a := range []*keeper.Attached{nil, {}} {
		require.Error(t, errOf(a.Digest(soon(t))))
	}
	err := errOf(keeper.Digest(soon(t), nil, 0, 1))
	require.ErrorIs(t, err, cu.ErrClosed)
	require.EqualError(t, err, "keeper: no context to compute a digest in: it is nil")
	over, cancel := context.WithCancel(soon(t))
	cancel()
	require.ErrorIs(t, errOf(Open(over, Options{Socket: newSocket(t)})), context.Canceled)
	require.ErrorContains(t, errOf(Open(soon(t), Options{Socket: newSocket(t), Grace: -1})), "time")
	s, c, dev := kept(t)
	require.ErrorContains(t, c.Watch(soon(t), "", nil), "no function")
	put(t, c, dev, "x", 1)
	require.ErrorIs(t, errOf(keeper.Attach(soon(t), nil, c.Client, "x", keeper.Want{})), cu.ErrNoDevice)
	require.ErrorIs(t, errOf(keeper.Attach(soon(t), dev.Driver(), nil, "x", keeper.Want{})), sock.ErrClosed)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	require.NoError(t, c.Close())
	require.NoError(t, c.Close())
	require.ErrorIs(t, errOf(c.List(soon(t))), sock.ErrClosed)
}
