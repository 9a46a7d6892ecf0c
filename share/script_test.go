package share

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/sock"
)

// A script lists the acts of a hostile peer, which a fuzzer makes up. An act is a
// byte that says which, the bytes that it takes, and the number and choice of the
// files that go with a record.
//
// Most acts are records as an honest peer would send them, so that a script of a
// few bytes gets far into a conversation, with changes of single bytes.
type script struct {
	bytes  []byte
	honest []wire.Message
	files  []*os.File
}

// The kinds of acts; from actHonest on an act is a record of an honest peer.
const (
	actRaw  = iota // send a record of the script's own: a length of two bytes, and as many
	actFlaw        // have the next honest record changed: an offset of two bytes, and a value
	actHear        // wait until the peer says something
	actHonest
)

// The limits of one script, so that it is soon over.
const (
	maxActs  = 24
	maxFiles = 4
)

// play does all of it, and returns when there is no more or the peer has gone.
func (s *script) play(ctx context.Context, conn *sock.Conn) {
	var flaws [][2]int
	for n := 0; n < maxActs && len(s.bytes) > 0; n++ {
		ok := true
		switch what := int(s.byte()) % (actHonest + len(s.honest)); what {
		case actRaw:
			ok = send(ctx, conn, s.take(s.u16()), s.pick())
		case actFlaw:
			flaws = append(flaws, [2]int{s.u16(), int(s.byte())})
		case actHear:
			ok = hears(ctx, conn)
		default:
			record := wire.Encode(s.honest[what-actHonest])
			for _, f := range flaws {
				record[f[0]%len(record)] = byte(f[1])
			}
			flaws = nil
			ok = send(ctx, conn, record, s.pick())
		}
		if !ok {
			return
		}
	}
}

// take removes n bytes, or as many as there are.
func (s *script) take(n int) []byte {
	b := s.bytes[:min(n, len(s.bytes))]
	s.bytes = s.bytes[len(b):]
	return b
}

func (s *script) byte() byte {
	for _, b := range s.take(1) {
		return b
	}
	return 0
}

func (s *script) u16() int { return int(s.byte()) | int(s.byte())<<8 }

func (s *script) pick() (files []*os.File) {
	for range s.byte() % (maxFiles + 1) {
		files = append(files, s.files[int(s.byte())%len(s.files)])
	}
	return files
}

// send returns false if the peer takes no more.
func send(ctx context.Context, conn *sock.Conn, record []byte, files []*os.File) bool {
	err := conn.Send(ctx, record, files...)
	return err == nil || errors.Is(err, sock.ErrEmptyRecord)
}

// hears takes one record, and returns false if none came. A peer that has
// nothing to say is not waited for long.
func hears(ctx context.Context, conn *sock.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	rec, err := conn.Receive(ctx)
	_ = rec.Close()
	return err == nil || errors.Is(err, context.DeadlineExceeded)
}

// An act of a seed: what, and which files go with it.
func act(what int, files ...byte) []byte {
	return append([]byte{byte(what), byte(len(files))}, files...)
}

// raw is an act that sends a record as it is.
func raw(record []byte, files ...byte) []byte {
	b := append([]byte{actRaw, byte(len(record)), byte(len(record) >> 8)}, record...)
	return append(append(b, byte(len(files))), files...)
}

// flawed is an act that changes the next honest record.
func flawed(offset int, value byte) []byte {
	return []byte{actFlaw, byte(offset), byte(offset >> 8), value}
}

// odds are files that no conversation has a use for: a pipe, /dev/null, and the
// directory.
func odds(f *testing.F) []*os.File {
	f.Helper()
	r, w, err := os.Pipe()
	null, err2 := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	dir, err3 := os.Open(".")
	if err := errors.Join(err, err2, err3, w.Close()); err != nil {
		f.Fatal(err)
	}
	files := []*os.File{r, null, dir}
	f.Cleanup(func() { _ = sock.CloseFiles(files) })
	return files
}

// hangUp says that this end has no more to say, and listens until the other has
// gone.
func hangUp(ctx context.Context, t *testing.T, conn *sock.Conn) {
	t.Helper()
	own, err := conn.File()
	if err == nil {
		raw, rerr := own.SyscallConn()
		err = errors.Join(rerr, raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) }), own.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	for {
		rec, err := conn.Receive(ctx)
		_ = rec.Close()
		if errors.Is(err, sock.ErrPeerLost) {
			return
		}
		if err != nil {
			t.Fatalf("the peer does not go: %v", err)
		}
	}
}

// requireDescriptors waits a moment until the process has no more descriptors of any kind
// than want. It may have fewer: where nobody waits for a close, want can count a socket of
// the test before.
func requireDescriptors(t testing.TB, want map[string]int) {
	t.Helper()
	for end := time.Now().Add(3 * time.Second); hasMore(cutest.Descriptors(), want); {
		if time.Now().After(end) {
			t.Fatalf("descriptors: %v, and were %v", cutest.Descriptors(), want)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// hasMore reports whether now has more descriptors of some kind than before.
func hasMore(now, before map[string]int) bool {
	for kind, n := range now {
		if n > before[kind] {
			return true
		}
	}
	return false
}
