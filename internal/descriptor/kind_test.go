package descriptor_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/testenv/fusetest"
)

func TestQuiet(t *testing.T) {
	make := func(fd int, err error) int {
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
		return fd
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "f")
	require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	event := make(unix.Eventfd(0, unix.EFD_CLOEXEC))
	for name, c := range map[string]struct {
		fd    int
		quiet bool
	}{
		"memfd":         {make(unix.MemfdCreate("x", unix.MFD_CLOEXEC)), true},
		"file":          {make(unix.Open(file, unix.O_RDWR|unix.O_CLOEXEC, 0)), true},
		"eventfd":       {event, true},
		"socket":        {make(pair[0], nil), false},
		"/dev/null":     {make(unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)), false},
		"proc":          {make(unix.Open("/proc/version", unix.O_RDONLY|unix.O_CLOEXEC, 0)), false},
		"no descriptor": {-1, false},
	} {
		require.Equal(t, c.quiet, descriptor.Quiet(c.fd), name)
		require.False(t, descriptor.IsNVIDIA(c.fd), name)
	}
	make(pair[1], nil)
}

// Neither question reaches the owner of a file system.
func TestFUSEIsNotAsked(t *testing.T) {
	f, m := fusetest.Open(t)
	m.Silence(fusetest.Getattr, fusetest.Flush)
	defer m.Abort()
	asked := func() {
		_, _ = f.Stat() // this one is
	}
	answers := []bool{descriptor.Quiet(int(f.Fd())), descriptor.IsNVIDIA(int(f.Fd()))}
	require.Equal(t, []bool{false, false}, answers)
	require.Empty(t, m.Asked())
	go asked()
	select {
	case op := <-m.Asked():
		require.Equal(t, fusetest.Getattr, op)
	case <-time.After(30 * time.Second):
		t.Error("fstat asked nobody: this test proves nothing")
	}
}
