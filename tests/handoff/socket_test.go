package handoff

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
)

// A place is a socket path at which no socket can be made or found.
type place struct {
	name               string
	make               func(t *testing.T, s *programs.Scene) (path string) // what is there; "" for the scene's
	producer, consumer int                                                 // exit codes
	says, asks         string                                              // words of the producer's and consumer's line
}

var places = []place{
	{"fault 51: overlong", overlong, 2, 2, "108 bytes, at most 107", "108 bytes, at most 107"},
	{"empty", literally(""), 2, 2, "empty", "empty"},
	{"trailing slash", literally("/tmp/"), 2, 2, "ends with a slash", "ends with a slash"},
	{"dot", literally("."), 2, 2, "names a directory", "names a directory"},
	{"missing directories", below("missing/twice/s"), 1, 1, "mkdir -p -m 700", "no producer there within 200ms"},
	{"file for a directory", fileAsDirectory, 1, 1, "not a directory", "not a directory"},
	{"fault 50: directory", makeDirectory, 1, 1, "something else is there", "not a SOCK_SEQPACKET socket"},
	{"fault 50: file", makeFile, 1, 1, "something else is there", "not a SOCK_SEQPACKET socket"},
	{"fault 50: symlink", makeSymlink("target"), 1, 1, "something else is there", "not a SOCK_SEQPACKET socket"},
	{"fault 50: dangling symlink", makeSymlink("nowhere"), 1, 1, "something else is there", "no producer there within 200ms"},
	{"fault 50: lock is symlink", makeLockSymlink, 1, 1, "lock file", "no producer there within 200ms"},
	{"stream socket", makeStreamSocket, 1, 1, "choose another socket with --socket", "a socket of another type"},
	{"fault 52: world writable", chmod(0o777), 1, 1, "mode 0777", "no producer there within 200ms"},
	{"fault 52: group writable", chmod(0o770), 1, 1, "mode 0770", "no producer there within 200ms"},
	{"fault 52: sticky", chmod(0o777 | os.ModeSticky), 1, 1, "mode 1777", "no producer there within 200ms"},
	{"fault 52: other user", chown, 1, 1, "belongs to uid 12345", "no producer there within 200ms"},
	{"nobody there", literally("SCENE"), 0, 1, "", "no producer there within 200ms"},
}

// TestFault50to52_Places: neither program does anything at a place that is not
// safe, or not there, and what is there stays.
func TestFault50to52_Places(t *testing.T) {
	programs.Parallel(t)
	for _, p := range places {
		for program, want := range map[string]struct {
			code int
			word string
		}{"producer": {p.producer, p.says}, "consumer": {p.consumer, p.asks}} {
			if want.code == 0 {
				continue
			}
			t.Run(p.name+" ("+program+")", func(t *testing.T) {
				programs.Parallel(t)
				cutest.ProvenOnSoft(t)
				s := programs.NewScene(t)
				path := p.make(t, s)
				before := s.Listing()
				s.Keep(before...)
				s.Start(program, nil, "-socket", path, "-timeout", "200ms").Fails(want.code, want.word)
				require.Equal(t, before, s.Listing())
			})
		}
	}
}

func literally(path string) func(*testing.T, *programs.Scene) string {
	return func(_ *testing.T, s *programs.Scene) string { return strings.Replace(path, "SCENE", s.Socket, 1) }
}

func below(name string) func(*testing.T, *programs.Scene) string {
	return func(_ *testing.T, s *programs.Scene) string { return filepath.Join(s.Dir, name) }
}

func overlong(_ *testing.T, s *programs.Scene) string {
	return filepath.Join(s.Dir, strings.Repeat("x", 108-len(s.Dir)-1))
}

func fileAsDirectory(t *testing.T, s *programs.Scene) string {
	require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "file"), nil, 0o600))
	return filepath.Join(s.Dir, "file", "s")
}

func makeDirectory(t *testing.T, s *programs.Scene) string {
	require.NoError(t, os.Mkdir(s.Socket, 0o700))
	return s.Socket
}

func makeFile(t *testing.T, s *programs.Scene) string {
	require.NoError(t, os.WriteFile(s.Socket, []byte("precious"), 0o600))
	return s.Socket
}

func makeSymlink(target string) func(*testing.T, *programs.Scene) string {
	return func(t *testing.T, s *programs.Scene) string {
		require.NoError(t, os.WriteFile(filepath.Join(s.Dir, "target"), []byte("precious"), 0o600))
		require.NoError(t, os.Symlink(target, s.Socket))
		return s.Socket
	}
}

func makeLockSymlink(t *testing.T, s *programs.Scene) string {
	require.NoError(t, os.Symlink("victim", filepath.Join(s.Dir, "t.lock")))
	return filepath.Join(s.Dir, "t")
}

func makeStreamSocket(t *testing.T, s *programs.Scene) string {
	fd := ok(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { require.NoError(t, unix.Close(fd)) })
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: s.Socket}))
	require.NoError(t, unix.Listen(fd, 8))
	return s.Socket
}

func chmod(mode os.FileMode) func(*testing.T, *programs.Scene) string {
	return func(t *testing.T, s *programs.Scene) string {
		require.NoError(t, os.Chmod(s.Dir, mode))
		return s.Socket
	}
}

func chown(t *testing.T, s *programs.Scene) string {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory to another user")
	}
	require.NoError(t, os.Chown(s.Dir, 12345, 12345))
	return s.Socket
}

// TestFault48_StaleSocket: a socket file without an owner is replaced by the
// next producer, whether a killed one left it or anybody else.
func TestFault48_StaleSocket(t *testing.T) {
	programs.Parallel(t)
	for name, leave := range map[string]func(t *testing.T, s *programs.Scene){
		"bare file": func(t *testing.T, s *programs.Scene) {
			fd := ok(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
			require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: s.Socket}))
			require.NoError(t, unix.Close(fd))
		},
		"killed producer": func(t *testing.T, s *programs.Scene) {
			s.Kill(s.Serving())
			require.Equal(t, []string{"s", "s.lock"}, s.Listing())
		},
		"lock file alone": func(t *testing.T, s *programs.Scene) {
			require.NoError(t, os.WriteFile(s.Socket+".lock", nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			s := programs.NewScene(t)
			leave(t, s)
			s.Consumer("-timeout", "200ms").Fails(1, "no producer there within 200ms")
			producer := s.Serving()
			s.Consumer().Succeeds()
			producer.Succeeds()
		})
	}
}

// TestFault49_LiveOwner: a second producer exits 1, and the first one goes on
// serving.
func TestFault49_LiveOwner(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	first := s.Serving("-consumers", "2")
	s.Consumer().Succeeds()
	line := s.Producer().Fails(1)
	require.Equal(t, "producer: another producer is already listening at "+s.Socket+": stop it, or choose another socket with --socket", line)
	s.Consumer().Succeeds()
	first.Succeeds()
}

// TestFault56_ManyAtOnce: of several producers that start at the same moment
// one serves.
func TestFault56_ManyAtOnce(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	s.Kill(s.Serving()) // so that there is a stale socket to race for
	producers := make([]*programs.Process, 6)
	for i := range producers {
		producers[i] = s.Producer()
	}
	served := 0
	for _, p := range producers {
		programs.Eventually(t, func() bool { return p.Ended() || len(programs.Find(p, "Waiting for consumer")) > 0 }, "neither serves nor ends")
		if p.Ended() {
			p.Fails(1, "already listening")
			continue
		}
		served++
		s.Consumer().Succeeds()
		p.Succeeds()
	}
	require.GreaterOrEqual(t, served, 1)
}

// TestSocketMode: nobody else can connect to the socket, from its first moment.
func TestSocketMode(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t)
	info := ok(os.Lstat(s.Socket))(t)
	require.Equal(t, os.ModeSocket|0o600, info.Mode())
	endsInOrder(producer)
}

// TestDefaultSocket: without -socket both meet in the user's runtime directory,
// or in a directory of the user's; the producer makes it, 0700.
func TestDefaultSocket(t *testing.T) {
	programs.Parallel(t)
	for name, env := range map[string]func(s *programs.Scene) []string{
		"XDG_RUNTIME_DIR": func(s *programs.Scene) []string { return args("XDG_RUNTIME_DIR=" + s.Dir) },
		"TMPDIR":          func(s *programs.Scene) []string { return args("XDG_RUNTIME_DIR=", "TMPDIR="+s.Dir) },
	} {
		t.Run(name, func(t *testing.T) {
			s := programs.NewScene(t)
			startDefault := func(program string, args ...string) *programs.Process {
				return programs.Start(t, program, programs.ProgramPath(t, program), append(env(s), "GPUFD_DRIVER="+programs.KindName()), args...)
			}
			startDefault("consumer", "-timeout", "200ms").Fails(1, "no producer there within 200ms")
			require.Empty(t, s.Listing(), "the consumer makes nothing")
			for range 2 { // the directory stays
				producer := startDefault("producer")
				producer.WaitLine("Waiting for consumer connection...")
				startDefault("consumer").Succeeds()
				producer.Succeeds()
			}
			made := s.Listing()
			require.Len(t, made, 1)
			s.Keep(made...)
			info := ok(os.Stat(filepath.Join(s.Dir, made[0])))(t)
			require.Equal(t, os.ModeDir|0o700, info.Mode())
			left := ok(os.ReadDir(filepath.Join(s.Dir, made[0])))(t)
			require.Empty(t, left)
		})
	}
}
