package handoff

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/sock"
)

// wrapped starts a program with another in front of it.
func wrapped(s *programs.Scene, wrap []string, env []string, program string, args ...string) *programs.Process {
	s.T.Helper()
	path := programs.ProgramPath(s.T, program)
	if len(wrap) == 0 {
		return s.Start(program, env, args...)
	}
	front, err := exec.LookPath(wrap[0])
	require.NoError(s.T, err)
	env = append([]string{"GPUFD_DRIVER=" + programs.KindName()}, env...)
	args = append(append(append(wrap[1:len(wrap):len(wrap)], path), "-socket", s.Socket), args...)
	return programs.Start(s.T, program, front, env, args...)
}

// TestFault46_Namespaces: producer and consumer each in namespaces of their own,
// as containers are, with the socket in a directory that both have: the handoff
// works, and the peer's pid is unknown where it is in another namespace. The
// software driver also needs its directory on both sides.
func TestFault46_Namespaces(t *testing.T) {
	programs.Parallel(t)
	in := cutest.Namespaced(t)
	for _, c := range []struct {
		name               string
		producer, consumer []string
	}{
		{"both", in, in},
		{"producer", in, nil},
		{"consumer", nil, in},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := programs.NewScene(t)
			producer := wrapped(s, c.producer, nil, "producer", "-size", "5MiB", "-chunk", "2MiB")
			producer.WaitLine("Waiting for consumer connection...")
			consumer := wrapped(s, c.consumer, nil, "consumer")
			consumer.Succeeds()
			producer.Succeeds()
			requirePeer(t, producer, "  consumer 1 is pid ", c.producer == nil)
			requirePeer(t, consumer, "  the producer is pid ", c.consumer == nil)
		})
	}
}

// requirePeer checks what a program says of the other side: who is outside sees
// into a namespace, who is inside does not see out.
func requirePeer(t *testing.T, p *programs.Process, prefix string, outside bool) {
	t.Helper()
	line := p.WaitLine(prefix)
	require.Equal(t, outside, !strings.HasPrefix(line, prefix+"unknown uid "), line)
}

// TestFault46_UserNamespaces: whose user namespaces differ, too. Root in a user
// namespace is who made it, and is admitted where that is the same user. Who has
// no number in the other's namespace is refused, whichever side that is.
func TestFault46_UserNamespaces(t *testing.T) {
	programs.Parallel(t)
	in := cutest.Namespaced(t, cutest.AsRoot...)
	unmapped := []string{"unshare", "--user"}
	t.Run("the same user", func(t *testing.T) {
		s := programs.NewScene(t)
		producer := wrapped(s, in, nil, "producer")
		producer.WaitLine("Waiting for consumer connection...")
		wrapped(s, in, nil, "consumer").Succeeds()
		producer.Succeeds()
		require.NotEmpty(t, programs.Find(producer, "  consumer 1 is pid unknown uid 0 "))
	})
	t.Run("the consumer does not know the producer", func(t *testing.T) {
		s, producer := serving(t)
		wrapped(s, unmapped, nil, "consumer").Fails(1, "uid 65534 stands for every user unknown in this user namespace")
		s.Consumer().Succeeds()
		producer.Succeeds()
	})
	t.Run("the producer does not know the consumer", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Skip("only root can be two users")
		}
		s := programs.NewScene(t)
		producer := wrapped(s, in, nil, "producer")
		producer.WaitLine("Waiting for consumer connection...")
		require.NoError(t, os.Chmod(s.Dir, 0o711))
		require.NoError(t, os.Chmod(s.Socket, 0o666))
		asUser(t, 12345, func() {
			conn := ok(sock.Dial(context.Background(), s.Socket))(t)
			require.NoError(t, conn.Close())
		})
		refused := producer.WaitLine("  turned a peer away")
		require.Contains(t, refused, "(pid unknown uid 65534 gid ")
		require.Contains(t, refused, "stands for every user unknown in this user namespace")
		wrapped(s, in, nil, "consumer").Succeeds()
		producer.Succeeds()
	})
	t.Run("a producer that does not know itself", func(t *testing.T) {
		s := programs.NewScene(t)
		wrapped(s, unmapped, nil, "producer").Fails(1, "belongs to a user unknown in this user namespace")
	})
}

// asUser calls f as another user, on a thread of its own; other goroutines of
// this process stay who they are.
func asUser(t *testing.T, uid int, f func()) {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	become := func(uid int) unix.Errno {
		_, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0))
		return errno
	}
	require.Zero(t, become(uid))
	defer func() { require.Zero(t, become(0)) }()
	f()
}

// TestFault46_SoftwareDirectory: what the software driver has to share is its
// directory, under whatever name: the devices are the directory's.
func TestFault46_SoftwareDirectory(t *testing.T) {
	programs.Parallel(t)
	if cutest.Kind() != cu.Soft {
		t.Skip("the software driver's own")
	}
	in := cutest.Namespaced(t)
	other := filepath.Join(t.TempDir(), "memory")
	require.NoError(t, os.Mkdir(other, 0o700))
	t.Run("another name", func(t *testing.T) {
		s, producer := serving(t)
		mount := append(in[:len(in):len(in)], "sh", "-c", `mount --bind "$0" "$1" && shift && exec "$@"`, os.Getenv("GPUFD_SOFT_DIR"), other)
		wrapped(s, mount, args("GPUFD_SOFT_DIR="+other), "consumer").Succeeds()
		producer.Succeeds()
	})
	t.Run("another directory", func(t *testing.T) {
		s, producer := serving(t)
		consumer := wrapped(s, in, args("GPUFD_SOFT_DIR="+other), "consumer")
		require.Equal(t, 1, consumer.Wait(), consumer.Dump())
		require.Contains(t, consumer.Err.String(), "the memory is on a device that is not visible to this process")
		require.Contains(t, consumer.Err.String(), "another GPUFD_SOFT_DIR")
		require.Equal(t, 1, producer.Wait(), producer.Dump())
	})
}
