package fdstore

import (
	"context"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/sock"
)

func TestSetsAreHeldAndDropped(t *testing.T) {
	c := dialed(t, serving(t, roomy))
	files := memfds(t, MaxSet)
	want := map[uint64]int{}
	for i, n := range []int{1, 63, 64, 65, 128, MaxSet} {
		id := math.MaxUint64 - uint64(i)
		require.NoError(t, c.Hold(soon(t), id, files[:n]))
		requireHolds(t, c, id, files[:n])
		want[id] = n
	}
	require.Equal(t, want, list(t, c))
	require.ErrorIs(t, c.Drop(soon(t), math.MaxUint64, 5), ErrUnknown)
	require.Equal(t, want, list(t, c), "all or none")
	require.NoError(t, c.Drop(soon(t), math.MaxUint64, math.MaxUint64-5))
	_, err := c.Fetch(soon(t), math.MaxUint64)
	require.ErrorIs(t, err, ErrUnknown)
	delete(want, math.MaxUint64)
	delete(want, math.MaxUint64-5)
	require.Equal(t, want, list(t, c))
	require.Equal(t, 63+64+65+128, status(t, c).Descriptors)
}

// The store closes what it drops, and nothing before.
func TestDroppedDescriptorsAreClosed(t *testing.T) {
	c := dialed(t, serving(t, roomy))
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	require.NoError(t, c.Hold(soon(t), 1, []*os.File{w}))
	require.NoError(t, w.Close())
	files, err := c.Fetch(soon(t), 1)
	require.NoError(t, err)
	_, err = files[0].WriteString("x")
	require.NoError(t, err)
	require.NoError(t, sock.CloseFiles(files))
	require.NoError(t, c.Drop(soon(t), 1))
	var b [2]byte
	n, err := r.Read(b[:])
	require.Equal(t, 1, n)
	require.NoError(t, err)
	_, err = r.Read(b[:])
	require.ErrorIs(t, err, io.EOF)
}

func TestManySetsAreListed(t *testing.T) {
	c := dialed(t, serving(t, roomy))
	f, ids := memfds(t, 1), []uint64{}
	for id := range uint64(maxIDs + 2) {
		require.NoError(t, c.Hold(soon(t), id*3, f))
		ids = append(ids, id*3)
	}
	sets := list(t, c)
	require.Len(t, sets, maxIDs+2)
	require.Equal(t, 1, sets[(maxIDs+1)*3])
	require.NoError(t, c.Drop(soon(t), ids...))
	require.Empty(t, list(t, c))
}

func TestSetsAreRefused(t *testing.T) {
	c := dialed(t, serving(t, roomy))
	files := memfds(t, 70)
	require.ErrorIs(t, c.Hold(soon(t), 1, nil), ErrSize)
	require.ErrorIs(t, c.Hold(soon(t), 1, make([]*os.File, MaxSet+1)), ErrSize)
	require.NoError(t, c.Hold(soon(t), 1, files[:1]))
	require.ErrorIs(t, c.Hold(soon(t), 1, files), ErrHeld)
	requireHolds(t, c, 1, files[:1])

	closed := memfds(t, 1)
	require.NoError(t, closed[0].Close())
	require.ErrorIs(t, c.Hold(soon(t), 2, append(files[:64:64], closed...)), os.ErrClosed)
	s := status(t, c)
	require.Equal(t, []int{1, 1}, []int{s.Sets, s.Descriptors}, "nothing of the first part is left")
}

func TestManifestIsSwapped(t *testing.T) {
	path := serving(t, roomy)
	c := dialed(t, path)
	require.Nil(t, manifest(t, c))
	require.Equal(t, int64(-1), status(t, c).Manifest)
	for _, m := range []string{"first", "", strings.Repeat("long ", 1<<17)} {
		require.NoError(t, c.Swap(soon(t), []byte(m)))
		require.Equal(t, []byte(m), manifest(t, c))
		require.Equal(t, int64(len(m)), status(t, c).Manifest)
	}
}

func TestOtherMemoryIsNoManifest(t *testing.T) {
	c := dialed(t, serving(t, roomy))
	require.NoError(t, c.Swap(soon(t), []byte("good")))
	swap := func(files ...*os.File) error {
		return c.do(soon(t), "swap", func() error { return c.requestNothing(soon(t), header{op: opSwap}, nil, files...) })
	}
	null, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer null.Close()
	require.ErrorIs(t, swap(), ErrManifest)
	require.ErrorIs(t, swap(null), ErrManifest)
	require.ErrorIs(t, swap(memfds(t, 1)...), ErrManifest)
	for _, missing := range []int{unix.F_SEAL_WRITE, unix.F_SEAL_SHRINK, unix.F_SEAL_GROW, unix.F_SEAL_SEAL} {
		f := withSeals(t, sealed&^missing)
		require.ErrorContains(t, swap(f), fmt.Sprintf("%#x is missing", missing))
	}
	good := withSeals(t, sealed)
	require.ErrorIs(t, swap(good, good), ErrManifest)
	require.Equal(t, "good", string(manifest(t, c)))

	large := withSize(t, MaxManifest+1)
	require.ErrorIs(t, swap(large), ErrManifest)
	require.NoError(t, swap(good))
	require.Empty(t, manifest(t, c))
}

func withSeals(t *testing.T, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "memfd")
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	return f
}

// withSize is a sealed memfd without any page.
func withSize(t *testing.T, size int64) *os.File {
	t.Helper()
	f := withSeals(t, 0)
	require.NoError(t, f.Truncate(size))
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, sealed)
	require.NoError(t, err)
	return f
}

// A store that is out of descriptors refuses more, and nothing else suffers.
func TestStoreThatIsFull(t *testing.T) {
	c := dialed(t, serving(t, spare+70))
	files := memfds(t, 71)
	require.Equal(t, 70, status(t, c).Room)
	require.ErrorIs(t, c.Hold(soon(t), 1, files), ErrFull)
	require.NoError(t, c.Hold(soon(t), 1, files[:69]))
	require.NoError(t, c.Hold(soon(t), 2, files[:1]))
	require.ErrorIs(t, c.Hold(soon(t), 3, files[:1]), ErrFull)
	requireHolds(t, c, 1, files[:69])
	require.NoError(t, c.Drop(soon(t), 1))
	require.Eventually(t, func() bool { return status(t, c).Room == 69 }, soonest, tick, "once they are closed")
	require.NoError(t, c.Hold(soon(t), 3, files[:69]))
}

// A call that is given up leaves the connection in order.
func TestAnswerThatNobodyWaitsFor(t *testing.T) {
	c := dialed(t, serving(t, roomy))
	files := memfds(t, 64)
	require.NoError(t, c.Hold(soon(t), 1, files))
	ended, cancel := context.WithCancel(soon(t))
	cancel()
	for range 100 {
		require.NoError(t, c.do(soon(t), "fetch", func() error {
			_, forget := c.await()
			defer forget()
			return c.conn.Send(soon(t), header{op: opFetch, seq: c.seq, id: 1}.append(nil))
		}))
		_, err := c.Fetch(ended, 1)
		require.ErrorIs(t, err, context.Canceled)
		requireHolds(t, c, 1, files)
	}
}
