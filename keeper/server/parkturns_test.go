package server

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// leaveMover leaves a descriptor for the next keeper, as that of a mover.
func leaveMover(t *testing.T, s *Server, f *os.File) {
	t.Helper()
	hold(s)
	defer s.finish()
	require.NoError(t, s.vault.hold(soon(t), moverID, oneFile(f)))
}

// A keeper that starts moves nothing before the mover of an earlier one has ended: requests wait, and hear why after a
// while if it does not end.
func TestMoverThatDoesNotEnd(t *testing.T) {
	before := killMover
	killed := make(chan struct{}, 1)
	killMover = func(*os.File) { killed <- struct{}{} }
	defer func() { killMover = before }()
	s, c, dev := pooled(t, 1)
	put(t, c, dev, "x", 1)
	mover := exec.Command("/bin/sleep", "1000")
	require.NoError(t, mover.Start())
	defer mover.Wait()
	defer mover.Process.Kill()
	f := pidfdOf(t, mover.Process.Pid)
	leaveMover(t, s, f)
	require.NoError(t, f.Close())

	log := newDiary()
	s, c = reopened(t, s, func(o *Options) { o.Log = log.log })
	require.Len(t, s.moves, 1, "it has the turn before anybody is served")
	<-killed
	began := time.Now()
	_, err := c.Park(soon(t), "x", 0)
	require.ErrorContains(t, requireCode(t, "failed", err), "was killed and does not end")
	require.Greater(t, time.Since(began), moverWait/2)
	require.Contains(t, ok(c.Status(soon(t)))(t).Pool.Error, "was killed and does not end")
	log.await(t, "was killed and does not end")
	require.NoError(t, mover.Process.Kill())
	_ = mover.Wait()
	log.await(t, "has ended")
	require.Positive(t, ok(c.Park(soon(t), "x", 0))(t).Bytes)
	require.Empty(t, ok(c.Status(soon(t)))(t).Pool.Error)
}

func pidfdOf(t *testing.T, pid int) *os.File {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	return os.NewFile(uintptr(fd), "pidfd")
}

// If the keeper cannot tell whether a mover lives, nothing is moved, and whoever parks hears why.
func TestMoverThatIsNotKnown(t *testing.T) {
	s, c, dev := pooled(t, 1)
	put(t, c, dev, "x", 1)
	leaveMover(t, s, memoryFile(t, "no process", 0))
	_, c = reopened(t, s, func(*Options) {})
	requireCode(t, "failed", errOf(c.Park(soon(t), "x", 0)))
	require.Contains(t, ok(c.Status(soon(t)))(t).Pool.Error, "it is not known whether a process still moves memory")
	requireBytes(t, attach(t, c, dev, "x")[0], 1)
}

// A user waits with one request, and is refused further ones. The keeper's own user is not.
func TestRequestsToMoveOfAUser(t *testing.T) {
	s, _, _ := kept(t)
	goOn, began := make(chan struct{}), make(chan struct{})
	over := make(chan error, 4)
	do := func(string, uint64, state.Who) (api.Moved, error) {
		began <- struct{}{}
		<-goOn
		return api.Moved{}, nil
	}
	ask := func(uid uint32) error {
		_, err := (&session{server: s, who: state.Who{UID: uid}}).move(protocol.Request{}, do)
		return err
	}
	own := s.opts.Policy.Owner
	for _, uid := range []uint32{own + 1, own + 1, own, own, own, own + 2} {
		go func() { over <- ask(uid) }()
		<-began
	}
	requireCode(t, codeBusy, ask(own+1))
	close(goOn)
	for range 6 {
		require.NoError(t, <-over)
	}
	go func() { <-began }()
	require.NoError(t, ask(own+1))
}

// A store that is silent while the pool is made has it made nevertheless, each chunk once.
func TestStoreIsSilentWhileThePoolIsMade(t *testing.T) {
	socket := newSocket(t)
	store := relayStore(t, socket)
	dev := cutest.Device(t)
	requireHostMemory(t, dev)
	h := hookSteps(t)
	opts := options(socket)
	opts.Pool, opts.Timeout = 3*granule, time.Second
	h.once("chunk held", func() {
		store.call(onceAt("swap:1", func(*sock.Conn) { time.Sleep(2 * opts.Timeout) })) // as long as a store may be silent
	})
	s := opened(t, opts)
	c := dialled(t, socket)
	awaitPool(t, c)
	require.Len(t, chunksOf(s), 3)
	require.NoError(t, s.Close())
}
