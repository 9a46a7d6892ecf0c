package descriptor_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/testenv/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Check(m.Run)) }

// The content is there, and nobody changes it: neither bytes, nor size, nor seals.
func TestSealed(t *testing.T) {
	for _, content := range []string{"", "some bytes", strings.Repeat("x", 1<<20)} {
		f, err := descriptor.Sealed("gpufd-test", []byte(content))
		require.NoError(t, err)
		got := make([]byte, len(content)+1)
		n, _ := f.ReadAt(got, 0)
		require.Equal(t, content, string(got[:n]))
		_, err = f.WriteAt([]byte("!"), 0)
		require.ErrorIs(t, err, unix.EPERM)
		require.ErrorIs(t, f.Truncate(int64(len(content)+1)), unix.EPERM)
		if content != "" {
			require.ErrorIs(t, f.Truncate(0), unix.EPERM)
		}
		seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
		require.NoError(t, err)
		require.Equal(t, descriptor.Seals, seals&descriptor.Seals)
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE)
		require.ErrorIs(t, err, unix.EPERM)
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
		require.NoError(t, f.Close())
	}
	_, err := descriptor.Sealed(strings.Repeat("n", 300), nil)
	require.ErrorContains(t, err, "memfd_create")
}
