package vmm

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// cold is a file that is on the disk and, if the file system does what it is asked,
// not in the page cache.
func cold(t *testing.T, data []byte) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "cold"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	_, err = f.Write(data)
	require.NoError(t, err)
	require.NoError(t, f.Sync())
	require.NoError(t, unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
	return f
}

// slotFor is memory as pinned memory is: aligned to pages.
func slotFor(t *testing.T, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b
}

func bytesFor(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + i>>16)
	}
	return b
}

// readsDirectly reports whether the file system has direct reads.
func readsDirectly(f *os.File, slot []byte) bool {
	direct, err := os.OpenFile(f.Name(), os.O_RDONLY|unix.O_DIRECT, 0)
	if err != nil {
		return false
	}
	defer direct.Close()
	_, err = direct.ReadAt(slot[:directAlign], 0)
	return err == nil
}

// Reads return the file's bytes, cached or not, from odd offsets and up to an end that is no multiple
// of a block.
func TestSourceReadsColdAndWarmFiles(t *testing.T) {
	data := bytesFor(2<<20 + 777)
	f := cold(t, data)
	s := &source{file: f}
	slot := slotFor(t, 1<<20)
	wasCold := !s.cached(1<<20, directMin)
	for range 2 {
		for _, at := range []uint64{1 << 20, 5, 4095, uint64(len(data)) - directMin, uint64(len(data)) - 100} {
			size := min(directMin+3, uint64(len(data))-at)
			got, err := s.read(slot, at, size)
			require.NoError(t, err)
			require.True(t, string(data[at:at+size]) == string(got), "%d bytes at %d", size, at)
		}
	}
	if wasCold && readsDirectly(f, slot) {
		require.NotNil(t, s.direct)
		require.False(t, s.buffered.Load(), "it was read past the page cache")
	}
	require.NoError(t, s.close())
	_, err := f.Seek(0, 0) // the caller's file is open
	require.NoError(t, err)

	warm := &source{file: f}
	_, err = os.ReadFile(f.Name())
	require.NoError(t, err)
	_, err = warm.read(slot, 0, directMin)
	require.NoError(t, err)
	require.Nil(t, warm.direct, "the page cache has it")
}

// All slots fit their bound, however large one is and however many processors there are.
func TestWorkersFitTheirSlots(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(64))
	for slot, want := range map[uint64]int{0: 8, 64 << 20: 8, 128 << 20: 4, 511 << 20: 1, 512 << 20: 1} {
		o := TransferOptions{Slot: slot}
		require.NoError(t, o.settle())
		require.Equal(t, want, o.Workers, "slots of %d bytes", slot)
	}
	tooLarge := TransferOptions{Slot: 513 << 20}
	require.ErrorIs(t, tooLarge.settle(), ErrSize)
}

// A file system that takes O_DIRECT and refuses the read is asked once.
func TestSourceThatRefusesDirectReads(t *testing.T) {
	data := bytesFor(1 << 20)
	f := cold(t, data)
	blind, err := os.OpenFile(f.Name(), os.O_WRONLY, 0)
	require.NoError(t, err)
	s := &source{file: f, direct: blind}
	s.once.Do(func() {})
	slot := slotFor(t, 1<<20)
	require.False(t, s.readDirect(slot, 0, directMin))
	require.True(t, s.buffered.Load())
	got, err := s.read(slot, 1, directMin)
	require.NoError(t, err)
	require.True(t, string(data[1:1+directMin]) == string(got))
	require.NoError(t, s.close())

	closed := &source{file: f}
	require.NoError(t, f.Close())
	require.False(t, closed.readDirect(slot, 0, directMin))
	require.Nil(t, closed.direct)
	_, err = closed.read(slot, 0, 1)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, "vmm: reading "+f.Name()+" at offset 0: ")
}
