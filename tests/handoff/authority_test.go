package handoff

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// asOther is another user.
func asOther() syscall.SysProcAttr {
	return syscall.SysProcAttr{Credential: &syscall.Credential{Uid: programs.OtherUID, Gid: programs.OtherGID}}
}

// inNamespace is root of user and PID namespaces in which only one user is known,
// which is uid here.
func inNamespace(uid int) syscall.SysProcAttr {
	return syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWPID,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		Credential:  &syscall.Credential{NoSetGroups: true},
	}
}

// needNamespaces skips where these namespaces cannot be made, or the driver does not
// work in them.
func needNamespaces(t *testing.T) {
	t.Helper()
	if cutest.Kind() == cu.CUDA {
		t.Skip("cuInit gives CUDA_ERROR_OPERATING_SYSTEM (304) in user and PID namespaces that are no more than that; the sockets are the same on the software driver")
	}
	if cutest.Emulated() {
		t.Skip("cannot make user and PID namespaces under qemu-user, where trying to leaves pipes open")
	}
	cmd := exec.Command("/bin/true")
	attr := inNamespace(os.Geteuid())
	cmd.SysProcAttr = &attr
	err := cmd.Run()
	testenv.Need(t, testenv.Namespaces, err == nil, fmt.Sprintf("cannot make user and PID namespaces here: %v", err))
}

// TestFault53_OtherUser: another user is let in if both sides say so, and else told
// in one line why not. Who is allowed anyway is served as ever.
func TestFault53_OtherUser(t *testing.T) {
	programs.Parallel(t)
	trust := args("-allow-uid", "0")
	for _, c := range []struct {
		name     string
		producer []string
		mode     os.FileMode // of the socket
		consumer []string
		says     []string // the consumer's line; none if it is let in
		told     bool     // the producer says that it turned somebody away
	}{
		{"nobody asked for it", nil, 0o600, trust, args("permission denied", "write permission on the socket"), false},
		{"its uid is allowed", args("-allow-uid", "12345"), 0o666, trust, nil, false},
		{"its uid is among those allowed", args("-allow-uid", "1,12345", "-allow-uid", "2"), 0o666, args("-allow-uid", "root"), nil, false},
		{"another uid is allowed", args("-allow-uid", "12346"), 0o666, trust,
			args("not allowed", "this is uid 12345 gid 12346: start the producer with --allow-uid or --allow-gid"), true},
		{"its gid is allowed", args("-allow-gid", "12346"), 0o660, args("-allow-gid", "0"), nil, false},
		{"its gid is among those allowed", args("-allow-gid", "1,12346"), 0o666, args("-allow-gid", "root"), nil, false},
		{"another gid is allowed", args("-allow-gid", "12345"), 0o660, trust, args("permission denied"), false},
		{"other gids are allowed", args("-allow-gid", "12345,1"), 0o666, trust, args("not allowed"), true},
		{"it takes no offers of others", args("-allow-uid", "12345"), 0o666, nil,
			args("sock: peer not admitted", "uid 0", "not user 12345", "to take its offers, use --allow-uid or --allow-gid"), false},
		{"it takes offers of another", args("-allow-uid", "12345"), 0o666, args("-allow-uid", "1", "-allow-gid", "1"), args("sock: peer not admitted"), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			programs.Parallel(t)
			if c.name != "its uid is allowed" {
				cutest.ProvenOnSoft(t)
			}
			s := programs.OpenScene(t)
			producer := s.Serving(append(args("-consumers", "0", "-size", "5MiB", "-chunk", "2MiB"), c.producer...)...)
			info := ok(os.Stat(s.Socket))(t)
			require.Equal(t, c.mode, info.Mode().Perm())
			other := s.StartAs(asOther(), "consumer", c.consumer...)
			if c.says == nil {
				other.Succeeds()
			} else {
				other.Fails(1, c.says...)
			}
			if c.told {
				require.Contains(t, producer.WaitLine("  turned a peer away"), "uid 12345 gid 12346")
			}
			s.Consumer().Succeeds()
			endsInOrder(producer)
		})
	}
}

// TestFault53_OtherUserServes: it works the other way round, too: a producer of
// another user, and root consumes.
func TestFault53_OtherUserServes(t *testing.T) {
	programs.Parallel(t)
	s := programs.OpenScene(t)
	require.NoError(t, os.Chown(s.Dir, programs.OtherUID, programs.OtherGID))
	producer := s.StartAs(asOther(), "producer", "-allow-uid", "root", "-consumers", "2")
	producer.WaitLine("Waiting for consumer connection...")
	s.Consumer().Fails(1, "sock: peer not admitted", "uid 12345", "to take its offers, use --allow-uid or --allow-gid")
	require.Empty(t, programs.Find(producer, "Consumer connected"))
	s.Consumer("-allow-uid", "12345").Succeeds()
	s.StartAs(asOther(), "consumer").Succeeds()
	producer.Succeeds()
}

// TestLegacyOtherUser: a legacy handle goes to another user who is admitted like any. On a
// GPU the test says what the driver makes of it, which is not promised; on the software
// driver its memory is in the user's own directory, and the consumer says so.
func TestLegacyOtherUser(t *testing.T) {
	programs.Parallel(t)
	s := programs.OpenScene(t)
	producer := s.Serving("-handle", "legacy", "-allow-uid", programs.Decimal(programs.OtherUID), "-consumers", "2")
	other := s.StartAs(asOther(), "consumer", "-allow-uid", "0")
	if cutest.Kind() == cu.CUDA {
		code := other.Wait()
		t.Logf("uid %d opens a handle of uid 0: exit code %d\n%s", programs.OtherUID, code, other.Dump())
		require.Contains(t, []int{0, 1}, code)
	} else {
		other.Fails(1, "cuIpcOpenMemHandle: CUDA_ERROR_MAP_FAILED", "another GPUFD_SOFT_DIR, as each user has", "ask for a descriptor")
		producer.WaitLine("Consumer reported a failure")
	}
	s.Consumer().Succeeds()
	if other.Wait() == 0 {
		producer.Succeeds()
		return
	}
	producer.Fails(1, "the consumer reports: attaching failed", "CUDA_ERROR_MAP_FAILED")
}

// TestSoftwareDirectoryOfAnotherUser: one directory is of one user, and the error says what
// another does.
func TestSoftwareDirectoryOfAnotherUser(t *testing.T) {
	programs.Parallel(t)
	if cutest.Kind() != cu.Soft {
		t.Skip("of the software driver")
	}
	s := programs.OpenScene(t)
	dir := filepath.Join(s.Dir, "soft")
	require.NoError(t, os.Mkdir(dir, 0o700))
	defer func() { require.NoError(t, os.RemoveAll(dir)) }()
	for _, program := range args("producer", "consumer") {
		s.StartAsIn(asOther(), dir, program).Fails(2, "GPUFD_SOFT_DIR="+strconv.Quote(dir)+": belongs to uid 0, and this is uid 12345", "want a directory of your own", "the file machine")
	}
}

// TestFault54_PIDZero: a producer in namespaces of its own does not know our pid,
// and serves us all the same: the uid decides.
func TestFault54_PIDZero(t *testing.T) {
	programs.Parallel(t)
	s := programs.OpenScene(t)
	needNamespaces(t)
	producer := s.StartAs(inNamespace(0), "producer")
	producer.WaitLine("Waiting for consumer connection...")
	s.Consumer().Succeeds()
	producer.Succeeds()
	require.Contains(t, producer.WaitLine("  consumer 1 is"), "pid unknown uid 0")
}

// TestFault54_OverflowUID: the uid that stands for everybody whom a namespace has no
// number for is refused, though it is allowed.
func TestFault54_OverflowUID(t *testing.T) {
	programs.Parallel(t)
	everybody := args("-allow-uid", "65534", "-allow-gid", "65534")
	t.Run("consumer", func(t *testing.T) {
		s := programs.OpenScene(t)
		needNamespaces(t)
		producer := s.StartAs(inNamespace(0), "producer", everybody...)
		producer.WaitLine("Waiting for consumer connection...")
		s.StartAs(asOther(), "consumer", "-allow-uid", "0").Fails(1, "not allowed", "uid 12345")
		require.Contains(t, producer.WaitLine("  turned a peer away"), "uid 65534 stands for every user unknown")
		s.Consumer().Succeeds()
		producer.Succeeds()
	})
	t.Run("producer", func(t *testing.T) {
		s := programs.OpenScene(t)
		needNamespaces(t)
		producer := s.Serving("-allow-uid", "12345")
		s.StartAs(inNamespace(programs.OtherUID), "consumer", everybody...).Fails(1, "uid 65534 stands for every user unknown")
		s.Consumer().Succeeds()
		producer.Succeeds()
	})
}

// TestFault59_Connections: a consumer that finds no place is told so, and harms
// nobody; when there is a place again it gets one.
func TestFault59_Connections(t *testing.T) {
	programs.Parallel(t)
	for _, c := range []struct{ flag, says string }{
		{"-connections", "the producer has 2 connections, and takes no more"},
		{"-connections-per-peer", "the producer has 2 connections of this process, and takes no more of it"},
	} {
		t.Run(c.flag, func(t *testing.T) {
			s, producer := serving(t, "-consumers", "0", c.flag, "2")
			held := []*share.Attachment{s.MustAttach(share.AttachOptions{}), s.MustAttach(share.AttachOptions{})}
			for range 3 {
				_, err := s.Attach(share.AttachOptions{})
				require.ErrorIs(t, err, share.ErrBusy)
				require.ErrorContains(t, err, c.says)
			}
			if c.flag == "-connections" {
				s.Consumer().Fails(1, "busy", c.says)
			} else {
				s.Consumer().Succeeds() // another process
			}
			for _, att := range held {
				require.NoError(t, att.Err())
				programs.Report(t, att, nil)
			}
			s.Consumer().Succeeds()
			endsInOrder(producer)
		})
	}
}

// raw connects to the scene's producer and asks for its offer; what comes then is
// the test's.
func raw(s *programs.Scene) *sock.Conn {
	s.T.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), programs.Patience)
	defer cancel()
	conn, err := sock.Dial(ctx, s.Socket)
	require.NoError(s.T, err)
	s.T.Cleanup(func() { require.NoError(s.T, conn.Close()) })
	require.NoError(s.T, conn.Send(ctx, programs.Wish(byte(cu.ReadOnly), cli.OfferName)))
	return conn
}

// TestFault60_NeverReads: a consumer that never reads is given up, whether it is
// silent or floods, and whenever it came. Others are served meanwhile.
func TestFault60_NeverReads(t *testing.T) {
	programs.Parallel(t)
	for name, c := range map[string]struct {
		flood   bool
		timeout string
		code    int
		says    string
	}{"silent": {false, programs.Enough, 4, "took too long"}, "flooding": {true, "1m", 1, "too many records a second"}} {
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			s, producer := serving(t, "-consumers", "2", "-timeout", c.timeout)
			conn := raw(s)
			producer.WaitLine("Sent FD")
			if c.flood {
				flood(t, conn)
			}
			s.Consumer().Succeeds()
			require.Contains(t, producer.WaitLine("Lost consumer 1"), c.says)
			producer.Fails(c.code, c.says)
		})
	}
}

// flood sends progress until the peer has had enough of it.
func flood(t *testing.T, conn *sock.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), programs.Patience)
	defer cancel()
	for n := 0; ; n++ {
		if err := conn.Send(ctx, programs.Progress()); err != nil {
			require.ErrorIs(t, err, sock.ErrPeerLost, fmt.Sprint(n))
			require.Greater(t, n, 500, "nobody is cut off for little")
			return
		}
	}
}
