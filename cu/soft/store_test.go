package soft

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// newStore opens a store in an empty directory.
func newStore(t testing.TB) *store {
	t.Helper()
	s, err := openStore(filepath.Join(t.TempDir(), "store"))
	require.NoError(t, err)
	return s
}

// createIn makes memory, held until the test ends or the fd is closed.
func createIn(t testing.TB, s *store, size, capacity uint64) (*trailer, int) {
	t.Helper()
	tr := &trailer{kind: kindGeneric, size: size}
	fd, err := s.create(tr, capacity)
	require.NoError(t, err)
	return tr, fd
}

func TestStoreIdentity(t *testing.T) {
	s := newStore(t)
	again, err := openStore(s.dir)
	require.NoError(t, err)
	require.Equal(t, s.uuid(0), again.uuid(0))
	require.NotEqual(t, s.uuid(0), s.uuid(1))
	require.NotEqual(t, s.uuid(0), newStore(t).uuid(0))
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, machineName), []byte("junk"), 0o600))
	_, err = openStore(s.dir)
	require.ErrorContains(t, err, "not an identity")
}

// The ledger may be wrong, in both directions; a count puts it right.
func TestLedger(t *testing.T) {
	s := newStore(t)
	const size, capacity = 1 << 20, 3 << 20
	_, a := createIn(t, s, size, capacity)
	defer unix.Close(a)
	require.NoError(t, s.locked(func(l *ledger) error { return l.set(0, 1<<40) })) // died before it made a file
	_, b := createIn(t, s, size, capacity)
	defer unix.Close(b)
	_, c := createIn(t, s, size, capacity)
	_, err := s.create(&trailer{size: size}, capacity)
	require.ErrorIs(t, err, errFull)
	unix.Close(c) // nobody tells the ledger
	_, d := createIn(t, s, size, capacity)
	defer unix.Close(d)
	_, err = s.create(&trailer{size: capacity + 1}, capacity)
	require.ErrorIs(t, err, errFull)
}

// Reclaiming keeps what somebody else still holds.
func TestReclaim(t *testing.T) {
	s := newStore(t)
	tr, fd := createIn(t, s, 4096, 1<<20)
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	path := filepath.Join(s.dir, tr.name())
	unix.Close(fd)
	require.NoError(t, s.reclaim(tr))
	require.FileExists(t, path)
	addr, err := mapShared(dup, 4096)
	require.NoError(t, err)
	unix.Close(dup)
	require.NoError(t, s.reclaim(tr))
	require.FileExists(t, path, "a mapping holds it")
	again, err := s.reopen(tr)
	require.NoError(t, err)
	unmap(addr, 4096)
	require.NoError(t, s.reclaim(tr))
	require.FileExists(t, path, "the reopened fd holds it")
	unix.Close(again)
	require.NoError(t, s.reclaim(tr))
	require.NoFileExists(t, path)
	require.NoError(t, s.reclaim(tr))
}

// A child has the descriptors of the moment of its fork until it runs another program. It
// does not keep what is reclaimed then.
func TestReclaimBesideForks(t *testing.T) {
	s := newStore(t)
	over := make(chan struct{})
	var forks sync.WaitGroup
	for range 4 {
		forks.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					_ = exec.Command("/bin/true").Run()
				}
			}
		})
	}
	for range 1000 {
		syscall.ForkLock.RLock()
		tr, fd := createIn(t, s, 4096, 1<<20)
		unix.Close(fd)
		syscall.ForkLock.RUnlock()
		require.NoError(t, s.reclaim(tr))
	}
	close(over)
	forks.Wait()
	left, err := filepath.Glob(filepath.Join(s.dir, "gpu*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// The second process that finds memory without holders finds it gone, and
// must not subtract it again.
func TestReclaimedTwice(t *testing.T) {
	s := newStore(t)
	const size, capacity = 1 << 20, 2 << 20
	_, kept := createIn(t, s, size, capacity)
	defer unix.Close(kept)
	tr, fd := createIn(t, s, size, capacity)
	unix.Close(fd)
	require.NoError(t, s.reclaim(tr))
	require.NoError(t, s.reclaim(tr))
	_, again := createIn(t, s, size, capacity)
	defer unix.Close(again)
	_, err := s.create(&trailer{size: size}, capacity)
	require.ErrorIs(t, err, errFull)
}

// A full file system is a full device, and leaves nothing behind.
func TestNoSpace(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Skip("cannot mount a small tmpfs: ", err)
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	s, err := openStore(dir)
	require.NoError(t, err)
	_, err = s.create(&trailer{size: 16 << 20}, 1<<30)
	require.ErrorIs(t, err, errFull)
	names, err := filepath.Glob(filepath.Join(dir, "gpu*"))
	require.NoError(t, err)
	require.Empty(t, names)
	used, err := s.used(0)
	require.NoError(t, err)
	require.Zero(t, used)
	_, fd := createIn(t, s, 1<<20, 1<<30)
	unix.Close(fd)
}

// A store that has gone fails what needs it, and nothing else.
func TestStoreGone(t *testing.T) {
	s := newStore(t)
	tr, fd := createIn(t, s, 4096, 1<<20)
	defer unix.Close(fd)
	require.NoError(t, os.RemoveAll(s.dir))
	_, err := s.create(&trailer{size: 4096}, 1<<20)
	require.Error(t, err)
	require.False(t, errors.Is(err, errFull))
	_, err = s.reopen(tr)
	require.Error(t, err)
}

// Whatever bytes stand there, reading a trailer does not fail in another way.
func FuzzTrailer(f *testing.F) {
	f.Add([]byte(trailerMagic), uint64(4096))
	for _, tr := range []trailer{
		{kind: kindGeneric, ordinal: hostOrdinal, size: granularity}, {kind: kindGeneric, ordinal: hostOrdinal + 1, size: granularity},
		{kind: kindGeneric, size: granularity, uuid: [16]byte{1}, id: [8]byte{2}},
		{kind: kindBlock, ordinal: maxDevices - 1, size: math.MaxInt64, pool: [8]byte{3}},
		{kind: kindControl}, {kind: kindExport}, {kind: kindSharedEvent}, {kind: kindControl, size: 1}, {kind: kindLinear, ordinal: maxDevices, size: 1}, {kind: kindLinear},
	} {
		f.Add(tr.bytes(), tr.size)
	}
	f.Fuzz(func(t *testing.T, b []byte, size uint64) {
		var page [trailerBytes]byte
		copy(page[:], b)
		if tr, ok := parseTrailer(page, size); ok {
			require.Equal(t, size, tr.size)
			require.True(t, tr.ordinal < maxDevices || tr.ordinal == hostOrdinal && tr.kind == kindGeneric)
			require.Equal(t, page[:], tr.bytes())
			if !tr.bare() {
				require.Equal(t, size, sizeInName(tr.name()))
			}
		}
	})
}
