package fdstore

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/sock"
)

const (
	soonest = 10 * time.Second
	tick    = time.Millisecond
)

// lingering is a TCP socket whose last close takes as long as the peer that release
// closes (socket(7), SO_LINGER).
func lingering(t *testing.T) (f *os.File, release func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	peer, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, c.(*net.TCPConn).SetLinger(60))
	f, err = c.(*net.TCPConn).File()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	fd := int(f.Fd())
	for buf := make([]byte, 1<<20); err == nil; { // until it does not fit
		_, err = unix.SendmsgN(fd, buf, nil, nil, unix.MSG_DONTWAIT)
	}
	require.ErrorIs(t, err, unix.EAGAIN)
	return f, func() { _ = peer.Close() }
}

// A descriptor that takes long to close holds up no call, and counts as held until it is closed.
func TestDropDoesNotWait(t *testing.T) {
	t.Setenv("GODEBUG", "asyncpreemptoff=1") // a signal would end the wait in close(2)
	c := spawnedChild(t, "narrow")
	f, release := lingering(t)
	defer release()
	room := status(t, c).Room
	require.NoError(t, c.Hold(soon(t), 1, []*os.File{f}))
	require.NoError(t, f.Close())
	require.NoError(t, c.Drop(soon(t), 1))
	require.Empty(t, list(t, c))
	require.Equal(t, room-1, status(t, c).Room)
	release()
	require.Eventually(t, func() bool { return status(t, c).Room == room }, soonest, tick)
}

// Invariant 2: a malformed record is an error to its sender, and costs nothing.
func TestHostileRecords(t *testing.T) {
	path := serving(t, roomy)
	files := memfds(t, 64)
	record := func(h header, body ...byte) []byte { h.seq = 9; return append(h.append(nil), body...) }
	whole := record(header{op: opStatus})
	tests := map[string]struct {
		record []byte
		files  []*os.File
		want   code
	}{
		"one byte":              {whole[:1], nil, 1},
		"half a header":         {whole[:headerSize-1], nil, 1},
		"another magic":         {bytes.Replace(whole, []byte(magic), []byte("GPFD"), 1), nil, 1},
		"another version":       {append(append([]byte(magic), 2, 0), whole[6:]...), nil, 1},
		"no operation":          {record(header{}), nil, 1},
		"an unknown operation":  {record(header{op: 9}), nil, 1},
		"an answer":             {record(header{op: opExit | answerBit}), nil, 1},
		"the longest":           {append(whole, make([]byte, sock.MaxRecord-headerSize)...), nil, 0},
		"status with files":     {whole, files[:1], 1},
		"exit with files":       {record(header{op: opExit}), files[:1], 1},
		"hold of nothing":       {record(header{op: opHold, id: 3, count: 1}), nil, 1},
		"hold of 0":             {record(header{op: opHold, id: 3}), files[:1], 1},
		"hold of too many":      {record(header{op: opHold, id: 3, count: MaxSet + 1}), files, 1},
		"hold of 2³²−1":         {record(header{op: opHold, id: 3, count: 1<<32 - 1}), files, 1},
		"hold of more than all": {record(header{op: opHold, id: 3, count: 63}), files, 1},
		"hold from the end":     {record(header{op: opHold, id: 3, count: 64, from: 1<<32 - 1}), files, 1},
		"hold in the middle":    {record(header{op: opHold, id: 3, count: 65, from: 1}), files, 7},
		"hold of what is held":  {record(header{op: opHold, id: 1, count: 64}), files, 3},
		"fetch of nothing":      {record(header{op: opFetch, id: 3}), nil, 2},
		"fetch past the end":    {record(header{op: opFetch, id: 1, from: 64}), nil, 1},
		"fetch from 2³²−1":      {record(header{op: opFetch, id: 1, from: 1<<32 - 1}), nil, 1},
		"drop of 2³²−1":         {record(header{op: opDrop, count: 1<<32 - 1}), nil, 1},
		"drop of half an id":    {record(header{op: opDrop, count: 1}, 1, 2, 3, 4), nil, 1},
		"drop without ids":      {record(header{op: opDrop, count: 1}), nil, 1},
		"drop of an unknown":    {record(header{op: opDrop, count: 1}, make([]byte, 8)...), nil, 2},
		"swap of a file":        {record(header{op: opSwap}), files[:1], 4},
	}
	c := dialed(t, path)
	require.NoError(t, c.Hold(soon(t), 1, files))
	require.NoError(t, c.Swap(soon(t), []byte("kept")))
	require.NoError(t, c.Close())
	conn, err := sock.Dial(soon(t), path)
	require.NoError(t, err)
	for name, test := range tests {
		require.NoError(t, conn.Send(soon(t), test.record, test.files...), name)
		rec, err := conn.Receive(soon(t))
		require.NoError(t, err, name)
		h, body, err := parse(rec.Data)
		require.NoError(t, err, name)
		require.Equal(t, test.want, h.code, "%s: %s", name, body)
		require.NotZero(t, h.op&answerBit, name)
	}
	require.NoError(t, conn.Close())
	c = dialed(t, path)
	require.Equal(t, map[uint64]int{1: 64}, list(t, c))
	requireHolds(t, c, 1, files)
	require.Equal(t, "kept", string(manifest(t, c)))
	s := status(t, c)
	require.Equal(t, 64, s.Descriptors)
}

// The parts of a set come in order, and nothing else comes in between.
func TestSetInParts(t *testing.T) {
	c := dialed(t, serving(t, roomy))
	files := memfds(t, 64)
	part := func(id uint64, from, total uint32) error {
		return c.do(soon(t), "hold", func() error {
			return c.requestNothing(soon(t), header{op: opHold, id: id, from: from, count: total}, nil, files...)
		})
	}
	for name, second := range map[string]func() error{
		"the same again":   func() error { return part(1, 64, 192) },
		"another set":      func() error { return part(2, 64, 129) },
		"another total":    func() error { return part(1, 64, 130) },
		"a gap":            func() error { return part(1, 65, 129) },
		"another question": func() error { _ = list(t, c); return part(1, 64, 129) },
	} {
		require.NoError(t, part(1, 0, 129), name)
		require.ErrorIs(t, second(), ErrOrder, name)
		require.ErrorIs(t, part(1, 64, 129), ErrOrder, "%s: the first part is gone", name)
		require.Zero(t, status(t, c).Descriptors, name)
	}
	require.NoError(t, part(1, 0, 128))
	require.NoError(t, part(1, 0, 128), "from the beginning")
	require.NoError(t, part(1, 64, 128))
	requireHolds(t, c, 1, append(files, files...))
	require.Equal(t, 128, status(t, c).Descriptors)
}

// A set that was sent in part is closed with its keeper's connection, or with a call that is
// given up, and not only by the next request.
func TestHalfASetIsClosed(t *testing.T) {
	for name, end := range map[string]func(c *Client) error{
		"closed":   (*Client).Close,
		"given up": func(c *Client) error { c.abandon(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			c := dialed(t, serving(t, roomy))
			r, w, err := os.Pipe()
			require.NoError(t, err)
			defer r.Close()
			require.NoError(t, c.requestNothing(soon(t), header{op: opHold, id: 1, count: 2}, nil, w))
			require.NoError(t, w.Close())
			require.NoError(t, end(c))
			require.NoError(t, r.SetReadDeadline(time.Now().Add(soonest)))
			_, err = r.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		})
	}
}

// A keeper that asks and does not read, and a client that is no keeper, hold up nobody.
func TestKeeperThatDoesNotRead(t *testing.T) {
	path := serving(t, roomy)
	conn, err := sock.Dial(soon(t), path)
	require.NoError(t, err)
	for err == nil {
		err = conn.TrySend(header{op: opStatus, seq: 1}.append(nil))
	}
	require.ErrorIs(t, err, sock.ErrWouldWait)
	require.NoError(t, conn.Close())
	require.Empty(t, list(t, dialed(t, path)))
}

func TestNilClient(t *testing.T) {
	for name, c := range map[string]*Client{"nil": nil, "zero": {}} {
		require.ErrorIs(t, c.Hold(soon(t), 1, nil), sock.ErrClosed, name)
		require.ErrorIs(t, c.Swap(soon(t), nil), sock.ErrClosed, name)
		require.ErrorIs(t, c.Exit(soon(t)), sock.ErrClosed, name)
		_, err := c.Fetch(soon(t), 1)
		require.ErrorIs(t, err, sock.ErrClosed, name)
		_, err = c.List(soon(t))
		require.ErrorIs(t, err, sock.ErrClosed, name)
		<-c.Done()
		require.ErrorIs(t, c.Err(), sock.ErrClosed, name)
		require.NoError(t, c.Close(), name)
	}
}

// A context may have what closed something else for its cause. A send that it ended does not wait for the store's end.
func TestCauseOfAContextIsNoEnd(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(sock.ErrClosed)
	err := plain.ContextErr(ctx)
	require.Equal(t, err, (&Client{}).sendError(ctx, err))
}
