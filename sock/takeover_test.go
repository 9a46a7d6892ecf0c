package sock

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever keeps the successor from taking the listener, the predecessor has it as before,
// and serves who waited.
//
//fault:rows 85
func TestListenerThatIsNotTakenStays(t *testing.T) {
	for name, c := range map[string]struct {
		successor func(t *testing.T, b *Conn, give context.CancelFunc)
		want      error
		words     string
	}{
		"it refuses": {func(t *testing.T, b *Conn, _ context.CancelFunc) {
			require.NoError(t, b.Send(soon(t), []byte("no room")))
		}, nil, "no room"},
		"it goes": {func(t *testing.T, b *Conn, _ context.CancelFunc) {
			require.NoError(t, b.Close())
		}, ErrPeerLost, ""},
		"it says nothing": {func(t *testing.T, b *Conn, give context.CancelFunc) {
			give()
		}, context.Canceled, ""},
		"it is too late": {func(t *testing.T, b *Conn, give context.CancelFunc) {
			give()
			require.Eventually(t, func() bool { return b.queued() > len(listenerOffered) }, 10*time.Second, time.Millisecond, "withdrawn")
			require.ErrorIs(t, errOf(TakeOver(soon(t), b, filepath.Join(safeDir(t), "other"))), ErrNotListener)
		}, context.Canceled, ""},
		"it has another path": {func(t *testing.T, b *Conn, _ context.CancelFunc) {
			require.ErrorIs(t, errOf(TakeOver(soon(t), b, filepath.Join(safeDir(t), "other"))), ErrNotListener)
		}, nil, "and not at"},
		"its path is wrong": {func(t *testing.T, b *Conn, _ context.CancelFunc) {
			require.ErrorIs(t, errOf(TakeOver(soon(t), b, "/nowhere/s")), ErrNoDirectory)
		}, nil, "no such directory"},
	} {
		t.Run(name, func(t *testing.T) {
			requireNoLeak(t)
			l := listenAt(t, filepath.Join(safeDir(t), "s"))
			a, b := pair(t)
			queued := dialled(t, l.Path())
			ctx, cancel := context.WithCancel(soon(t))
			defer cancel()
			given := make(chan error, 1)
			go func() { given <- l.HandOver(ctx, a) }()
			requireOffered(t, b)
			waited := make(chan error, 1)
			go func() { waited <- greet(l.Path(), false) }()
			c.successor(t, b, cancel)
			err := <-given
			require.Error(t, err)
			require.NotErrorIs(t, err, ErrHandedOver)
			require.ErrorContains(t, err, c.words)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
			requireWorks(t, accepted(t, l), queued)
			require.NoError(t, accepted(t, l).Send(soon(t), []byte("hello")))
			require.NoError(t, <-waited)
			later := dialled(t, l.Path())
			requireWorks(t, accepted(t, l), later)
			require.ErrorIs(t, errOf(Listen(l.Path())), ErrListening)

			next := handedOver(t, l) // the next one gets it
			later = dialled(t, next.Path())
			requireWorks(t, accepted(t, next), later)
		})
	}
}

// The word that the listener is taken counts if it was sent, also when nobody waited for
// it any longer: there is always one who listens, and never two.
func TestListenerIsOneProcess(t *testing.T) {
	requireNoLeak(t)
	l := listenAt(t, filepath.Join(safeDir(t), "s"))
	for range 200 {
		a, b := pair(t)
		ctx, cancel := context.WithCancel(soon(t))
		given := make(chan error, 1)
		go func() { given <- l.HandOver(ctx, a) }()
		requireOffered(t, b)
		go cancel()
		next, err := TakeOver(soon(t), b, l.Path())
		if gerr := <-given; gerr != nil {
			require.ErrorIs(t, gerr, context.Canceled)
			require.ErrorIs(t, err, ErrNotListener)
			continue
		}
		require.NoError(t, err)
		require.NoError(t, l.Close())
		t.Cleanup(func() { require.NoError(t, next.Close()) })
		l = next
	}
	c := dialled(t, l.Path())
	requireWorks(t, accepted(t, l), c)
}

// The descriptors are checked before anything is changed.
func TestWhatIsNoListenerIsNotTakenOver(t *testing.T) {
	requireNoLeak(t)
	dir := safeDir(t)
	l := listenAt(t, filepath.Join(dir, "s"))
	other := listenAt(t, filepath.Join(dir, "other"))
	stream := ok(net.Listen("unix", filepath.Join(dir, "stream")))(t)
	defer stream.Close()
	streamFile := ok(stream.(*net.UnixListener).File())(t)
	defer streamFile.Close()
	tcp := ok(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer tcp.Close()
	tcpFile := ok(tcp.(*net.TCPListener).File())(t)
	defer tcpFile.Close()
	unlocked := ok(os.Open(l.Path() + ".lock"))(t)
	defer unlocked.Close()
	server, _ := pair(t)
	file := tempFile(t, "file")
	for name, c := range map[string]struct {
		record []byte
		files  []*os.File
		words  string
	}{
		"another record":      {[]byte("hello"), nil, "a record of 5 bytes with 0 descriptors"},
		"nothing":             {listenerOffered, nil, "with 0 descriptors"},
		"no lock":             {listenerOffered, []*os.File{l.s.file}, "with 1 descriptors"},
		"too much":            {listenerOffered, []*os.File{l.s.file, l.lock.file, file}, "with 3 descriptors"},
		"a file":              {listenerOffered, []*os.File{file, l.lock.file}, "socket operation on non-socket"},
		"a connection":        {listenerOffered, []*os.File{server.s.file, l.lock.file}, "socket option"},
		"a stream":            {listenerOffered, []*os.File{streamFile, l.lock.file}, "socket option"},
		"TCP":                 {listenerOffered, []*os.File{tcpFile, l.lock.file}, "socket option"},
		"another listener":    {listenerOffered, []*os.File{other.s.file, l.lock.file}, "and not at"},
		"another lock":        {listenerOffered, []*os.File{l.s.file, other.lock.file}, "is not the lock"},
		"a file for a lock":   {listenerOffered, []*os.File{l.s.file, file}, "is not the lock"},
		"a lock not held":     {listenerOffered, []*os.File{l.s.file, unlocked}, "it holds the lock"},
		"the wrong way round": {listenerOffered, []*os.File{l.lock.file, l.s.file}, "socket operation on non-socket"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			require.NoError(t, a.Send(soon(t), c.record, c.files...))
			_, err := TakeOver(soon(t), b, l.Path(), WithMode(0o666))
			if name == "a lock not held" {
				require.ErrorIs(t, err, ErrListening)
			} else {
				require.ErrorIs(t, err, ErrNotListener)
			}
			require.ErrorContains(t, err, c.words)
			rec := received(t, a)
			require.Contains(t, string(rec.Data), c.words)
			info := ok(os.Stat(l.Path()))(t)
			require.EqualValues(t, 0o600, info.Mode().Perm())
		})
	}
	c := dialled(t, l.Path())
	requireWorks(t, accepted(t, l), c)
}

// A predecessor that dies once all is sent has not withdrawn it.
//
//fault:rows 85
func TestPredecessorDies(t *testing.T) {
	requireNoLeak(t)
	dir := safeDir(t)
	l := listenAt(t, filepath.Join(dir, "s"))
	a, b := pair(t)
	require.NoError(t, l.closeDoor(soon(t)))
	require.NoError(t, a.Send(soon(t), listenerOffered, l.s.file, l.lock.file))
	require.NoError(t, a.Close())
	l.letGo()
	next := ok(TakeOver(soon(t), b, l.Path()))(t)
	requireWorks(t, dialled(t, l.Path()), accepted(t, next))
	require.NoError(t, next.Close())
	requireEmptyDir(t, dir)

	l = listenAt(t, l.Path())
	a, b = pair(t)
	require.NoError(t, a.Close()) // before anything is sent
	require.ErrorIs(t, errOf(TakeOver(soon(t), b, l.Path())), ErrPeerLost)
}

// The successor has options of its own.
func TestSuccessorHasItsOwnOptions(t *testing.T) {
	requireNoLeak(t)
	l := listenAt(t, filepath.Join(safeDir(t), "s"), WithMaxFDs(0), WithMode(0o660))
	next := handedOver(t, l, WithMode(0o600))
	info := ok(os.Stat(l.Path()))(t)
	require.EqualValues(t, 0o600, info.Mode().Perm())
	c := dialled(t, l.Path())
	require.NoError(t, c.Send(soon(t), []byte("file"), tempFile(t, "")))
	rec := ok(accepted(t, next).Receive(soon(t)))(t)
	require.Len(t, rec.Files, 1)
	require.NoError(t, rec.Close())

	last := handedOver(t, next, WithMaxFDs(0))
	c = dialled(t, l.Path())
	server := accepted(t, last)
	if c.Send(soon(t), []byte("file"), tempFile(t, "")) == nil { // the kernel is older than 6.16
		require.ErrorIs(t, errOf(server.Receive(soon(t))), ErrTooManyFDs)
	}
}

// One HandOver at a time, and none of what is not there.
func TestHandOverOfWhatIsNotThere(t *testing.T) {
	requireNoLeak(t)
	l := listenAt(t, filepath.Join(safeDir(t), "s"))
	a, b := pair(t)
	for _, none := range []*Listener{nil, {}} {
		require.ErrorIs(t, none.HandOver(soon(t), a), ErrClosed)
	}
	for _, none := range []*Conn{nil, {}} {
		require.ErrorIs(t, l.HandOver(soon(t), none), ErrClosed)
		require.ErrorIs(t, errOf(TakeOver(soon(t), none, l.Path())), ErrClosed)
	}
	ctx, cancel := context.WithCancel(soon(t))
	given := make(chan error, 1)
	go func() { given <- l.HandOver(ctx, a) }()
	requireOffered(t, b)
	require.ErrorIs(t, l.HandOver(soon(t), a), ErrWouldWait)
	require.NoError(t, l.Remove())
	require.FileExists(t, l.Path()+".lock")
	cancel()
	require.ErrorIs(t, <-given, context.Canceled)

	require.NoError(t, os.Rename(l.Path(), l.Path()+".moved"))
	a, _ = pair(t)
	require.ErrorIs(t, l.HandOver(soon(t), a), ErrListening)
	require.NoError(t, os.Rename(l.Path()+".moved", l.Path()))
	requireWorks(t, dialled(t, l.Path()), accepted(t, l))
	require.NoError(t, l.Close())
	require.ErrorIs(t, l.HandOver(soon(t), a), ErrClosed)
}

// A successor whose listener is withdrawn has not listened: who waited sees the pid of the
// predecessor, which serves it.
func TestWithdrawnListenerShowsItsPredecessor(t *testing.T) {
	requireNoLeak(t)
	l := listenAt(t, filepath.Join(safeDir(t), "s"))
	a, b := pair(t)
	ctx, cancel := context.WithCancel(soon(t))
	given := make(chan error, 1)
	go func() { given <- l.HandOver(ctx, a) }()
	requireOffered(t, b)
	next := ok(receiveListener(soon(t), b, l.Path(), newOptions(nil)))(t)
	over, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	require.ErrorIs(t, errOf(Dial(over, l.Path())), context.DeadlineExceeded, "the door is closed")
	cancel()
	require.ErrorIs(t, <-given, context.Canceled)
	require.ErrorIs(t, next.confirm(soon(t), b), ErrNotListener)
	next.letGo()
	requireWorks(t, dialled(t, l.Path()), accepted(t, l))
}
