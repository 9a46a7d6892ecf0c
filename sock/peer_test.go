package sock

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/testenv"
)

func TestPolicy(t *testing.T) {
	full := namespace{uid: idMap{65534, true}, gid: idMap{65534, true}}
	mapped := namespace{uid: idMap{65534, false}, gid: idMap{65534, false}}
	some := Policy{UIDs: []uint32{7, 65534}, GIDs: []uint32{70, 65534}}
	for _, c := range []struct {
		name   string
		policy Policy
		peer   Peer
		self   uint32
		ns     namespace
		ok     bool
	}{
		{"same user", Policy{}, Peer{UID: 5, GID: 9}, 5, mapped, true},
		{"same user, pid unknown", Policy{}, Peer{UID: 5, PID: 0}, 5, mapped, true},
		{"another user", Policy{}, Peer{UID: 6}, 5, mapped, false},
		{"root is another user", Policy{}, Peer{UID: 0}, 5, full, false},
		{"a user listed", some, Peer{UID: 7}, 5, mapped, true},
		{"same user beside a list", some, Peer{UID: 5}, 5, mapped, true},
		{"a user not listed", some, Peer{UID: 8, GID: 7}, 5, mapped, false},
		{"a group listed", some, Peer{UID: 8, GID: 70}, 5, mapped, true},
		{"a uid is no gid", some, Peer{UID: 70, GID: 8}, 5, mapped, false},
		{"overflow uid, listed, identity", some, Peer{UID: 65534}, 5, full, true},
		{"overflow uid, listed", some, Peer{UID: 65534}, 5, mapped, false},
		{"overflow uid, its own", Policy{}, Peer{UID: 65534}, 65534, mapped, false},
		{"overflow uid, group listed", some, Peer{UID: 65534, GID: 70}, 5, mapped, false},
		{"overflow gid, listed, identity", some, Peer{UID: 8, GID: 65534}, 5, full, true},
		{"overflow gid, listed", some, Peer{UID: 8, GID: 65534}, 5, mapped, false},
		{"other overflow uid", Policy{}, Peer{UID: 99}, 99, namespace{uid: idMap{99, false}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.policy.check(c.peer, c.self, c.ns)
			if c.ok {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrNotAdmitted)
			var refused *NotAdmittedError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, c.peer, refused.Peer)
			require.NotEmpty(t, refused.Reason)
		})
	}
	require.NoError(t, Policy{}.Check(Peer{UID: uint32(os.Geteuid())}))
}

func TestIdentityMap(t *testing.T) {
	for text, want := range map[string]bool{
		"         0          0 4294967295\n": true,
		"":                                   false,
		"         0       1000          1\n": false,
		"         0          0      65536\n": false,
		"         0          0 4294967294\n": false,
		"0 0 4294967295\n0 0 1\n":            false,
	} {
		require.Equal(t, want, isIdentity(text), text)
	}
}

func TestPeerString(t *testing.T) {
	require.Equal(t, "pid 3 uid 1 gid 2", Peer{1, 2, 3}.String())
	require.Equal(t, "pid unknown uid 1 gid 2", Peer{1, 2, 0}.String())
	require.Equal(t, "sock: peer not admitted (pid 3 uid 1 gid 2): a reason", (&NotAdmittedError{Peer{1, 2, 3}, "a reason"}).Error())
}

func init() {
	// dials and waits for a record: "welcome", "forbidden" or "refused"
	children["dial"] = func(args []string) error {
		c, err := Dial(context.Background(), args[0])
		if errors.Is(err, os.ErrPermission) {
			return expect("forbidden", args[1])
		}
		if err != nil {
			return err
		}
		defer c.Close()
		rec, err := c.Receive(context.Background())
		if errors.Is(err, ErrPeerLost) {
			return expect("refused", args[1])
		}
		if err != nil {
			return err
		}
		return expect(string(rec.Data), args[1])
	}
}

func expect(got, want string) error {
	if got != want {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}

// TestFault53_OtherUID: another user needs both the file's permission and the
// policy's; whoever is refused costs the others nothing.
func TestFault53_OtherUID(t *testing.T) {
	requireNoLeak(t)
	const uid, gid = 12345, 12346
	for _, c := range []struct {
		name, want string
		opts       []ListenOption
	}{
		{"mode 0600", "forbidden", []ListenOption{WithPolicy(Policy{UIDs: []uint32{uid}})}},
		{"policy without it", "refused", []ListenOption{WithMode(0o666)}},
		{"policy with another", "refused", []ListenOption{WithMode(0o666), WithPolicy(Policy{UIDs: []uint32{gid}, GIDs: []uint32{uid}})}},
		{"policy with its uid", "welcome", []ListenOption{WithMode(0o666), WithPolicy(Policy{UIDs: []uint32{uid}})}},
		{"policy with its gid", "welcome", []ListenOption{WithMode(0o666), WithPolicy(Policy{GIDs: []uint32{gid}})}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := listenAt(t, filepath.Join(safeDir(t), "s"), c.opts...)
			cmd := childCommand(t, "dial", l.Path(), c.want)
			asUser(t, cmd, uid, gid)
			done := make(chan func(), 1)
			go func() {
				out, err := cmd.CombinedOutput()
				done <- func() { require.NoError(t, err, "%s", out) }
			}()
			switch c.want {
			case "refused":
				_, err := l.Accept(soon(t))
				var refused *NotAdmittedError
				require.ErrorAs(t, err, &refused)
				require.Equal(t, uint32(uid), refused.Peer.UID)
				require.Equal(t, uint32(gid), refused.Peer.GID)
			case "welcome":
				conn := accepted(t, l)
				require.NoError(t, conn.Send(soon(t), []byte("welcome")))
				require.NoError(t, conn.WaitClose(soon(t)))
				require.NoError(t, conn.Close())
			}
			(<-done)()

			requireServes(t, l)
		})
	}
}

func init() {
	// listens, greets whoever it admits, and reports each peer
	children["report-peers"] = func(args []string) error {
		l := testenv.Got(Listen(args[0], WithMode(0o666), WithPolicy(Policy{UIDs: []uint32{65534}, GIDs: []uint32{65534}})))
		fmt.Println("listening")
		go func() { // until stdin ends
			_, _ = io.ReadAll(os.Stdin)
			_ = l.Close()
		}()
		for {
			c, err := l.Accept(context.Background())
			var refused *NotAdmittedError
			switch {
			case errors.Is(err, ErrClosed):
				return nil
			case errors.As(err, &refused):
				fmt.Printf("refused %v\n", refused.Peer)
			case err != nil:
				return err
			default:
				fmt.Printf("admitted %v\n", c.Peer())
				_ = c.Send(context.Background(), []byte("welcome"))
				_ = c.Close()
			}
		}
	}
	// says whether Listen takes a directory whose owner has no number here
	children["listen-unmapped"] = func(args []string) error {
		_, err := Listen(args[0])
		if !isWith(err, ErrInsecure, "unknown in this user namespace") {
			return fmt.Errorf("listen as uid %d: %w", os.Geteuid(), err)
		}
		return nil
	}
}

// needNamespaces skips where this user may not make user namespaces.
func needNamespaces(t *testing.T) {
	t.Helper()
	cmd := childCommand(t, "dial")
	cmd.Path = "/bin/true"
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	if err := cmd.Run(); err != nil {
		t.Skipf("cannot make a user namespace here: %v", err)
	}
}

// TestFault54_PIDZeroAndOverflowUID: a listener in namespaces of its own sees
// our pid as 0 and admits us all the same; a user whom its namespace does not
// know is refused, though 65534 is on its list.
func TestFault54_PIDZeroAndOverflowUID(t *testing.T) {
	needNamespaces(t)
	requireNoLeak(t)
	path := filepath.Join(safeDir(t), "s")
	cmd := childCommand(t, "report-peers", path)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	stdin, stdout := started(t, cmd)
	lines := bufio.NewScanner(stdout)
	says := func(want string) {
		require.True(t, lines.Scan())
		require.True(t, strings.HasPrefix(lines.Text(), want), "%q, want %q", lines.Text(), want)
	}
	says("listening")

	c := dialled(t, path)
	says("admitted pid unknown uid 0 gid 0")
	require.Equal(t, int32(cmd.Process.Pid), c.Peer().PID, "we see into its namespace")
	require.NoError(t, c.Close())

	if os.Geteuid() == 0 {
		other := childCommand(t, "dial", path, "refused")
		asUser(t, other, 12345, 12346)
		requireRuns(t, other)
		says("refused pid unknown uid 65534 gid 65534")
	}
	require.NoError(t, stdin.Close())
	require.NoError(t, cmd.Wait())
}

// TestFault54_OverflowUIDOwnsDirectory: "owned by 65534, as I am" proves nothing.
func TestFault54_OverflowUIDOwnsDirectory(t *testing.T) {
	needNamespaces(t)
	dir := safeDir(t)
	cmd := childCommand(t, "listen-unmapped", filepath.Join(dir, "s"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
	requireRuns(t, cmd)
	requireEmptyDir(t, dir)
}
