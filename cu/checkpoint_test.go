package cu_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// checkpointCalls are the methods of a Process that can fail, by their function.
func checkpointCalls(p cu.Process) map[string]error {
	return map[string]error{
		"cuCheckpointProcessGetState":           errOf(p.State()),
		"cuCheckpointProcessLock":               p.Lock(time.Second),
		"cuCheckpointProcessCheckpoint":         p.Checkpoint(),
		"cuCheckpointProcessRestore":            p.Restore(cu.DevicePair{}),
		"cuCheckpointProcessUnlock":             p.Unlock(),
		"cuCheckpointProcessGetRestoreThreadId": errOf(p.RestoreThreadID()),
	}
}

// Each call for a process that cannot be checkpointed fails, and harms nothing: the software driver's processes, and none.
func TestCheckpointOfNothing(t *testing.T) {
	drv := cutest.Driver(t)
	const beyond = 1 << 30 // the kernel's numbers end at 1<<22
	require.NotEqual(t, drv.Process(os.Getpid()), drv.Process(os.Getpid()+1<<32), "a number is not cut off")
	for op, err := range checkpointCalls(drv.Process(beyond)) {
		if lacks(t, drv, op, err) {
			continue
		}
		var failed *cu.Error
		require.ErrorAs(t, err, &failed, op)
		require.Equal(t, op, failed.Op)
		if cutest.Kind() == cu.Soft {
			require.ErrorIs(t, err, cu.ErrNotSupported, op)
		}
	}
	for _, never := range []time.Duration{0, -1, time.Duration(1<<32) * time.Millisecond} {
		err := drv.Process(os.Getpid()).Lock(never)
		require.ErrorIs(t, err, cu.ErrInvalidValue)
		require.ErrorContains(t, err, "a timeout of "+never.String())
	}
}

// A driver from before CUDA 12.8 says what it lacks.
func TestCheckpointNeedsItsFunctions(t *testing.T) {
	var ops []string
	for op := range checkpointCalls(cutest.Driver(t).Process(0)) {
		ops = append(ops, op)
	}
	for op, err := range checkpointCalls(cutest.Driver(t, without(t, ops...)).Process(os.Getpid())) {
		var missing *cu.SymbolError
		require.ErrorAs(t, err, &missing, op)
		require.Equal(t, op, missing.Symbol)
		require.Equal(t, 12080, missing.Needs)
	}
}

// A sleeper is a process with memory of its own and, at times, memory of this process.
type sleeper struct {
	*exec.Cmd
	cu.Process
	in     io.WriteCloser
	out    *bufio.Scanner
	socket int
}

func newSleeper(t *testing.T, drv *cu.Driver) *sleeper {
	t.Helper()
	pair := ok(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
	theirs := os.NewFile(uintptr(pair[1]), "theirs")
	s := &sleeper{Cmd: cutest.Child(soon(t), "sleeper"), socket: pair[0]}
	s.in, s.out = ok(s.StdinPipe())(t), bufio.NewScanner(ok(s.StdoutPipe())(t))
	s.Stderr, s.ExtraFiles = os.Stderr, []*os.File{theirs}
	require.NoError(t, s.Start())
	s.Process = drv.Process(s.Cmd.Process.Pid)
	t.Cleanup(func() {
		_ = s.Cmd.Process.Kill()
		_ = s.Wait()
		require.NoError(t, unix.Close(pair[0]))
	})
	require.NoError(t, theirs.Close())
	require.Equal(t, "ready", s.next(t))
	return s
}

// checkpointing returns a driver that has checkpoints, and a descriptor of memory of this process that begins with 7,
// or skips t.
func checkpointing(t *testing.T) (*cu.Driver, *os.File) {
	t.Helper()
	if cutest.Kind() == cu.Soft {
		t.Skip("the software driver has no checkpoints")
	}
	drv := cutest.Driver(t)
	if drv.Version() < 12080 {
		t.Skip("checkpoints came with CUDA 12.8")
	}
	dev := firstDevice(t, drv)
	lent, p := exportedMemory(t, dev, sleeperSize)
	ctx := cutest.Context(t, dev)
	require.NoError(t, cu.Fill(ctx, p, uint8(7), sleeperSize))
	require.NoError(t, ctx.Synchronize(soon(t)))
	return drv, untilEnd(t, lent)
}

// next returns the sleeper's next line.
func (s *sleeper) next(t *testing.T) string {
	t.Helper()
	require.True(t, s.out.Scan(), "the sleeper has ended: %v", s.out.Err())
	return s.out.Text()
}

// ask makes the sleeper do something.
func (s *sleeper) ask(t *testing.T, what string) string {
	t.Helper()
	require.NoError(t, errOf(fmt.Fprintln(s.in, what)))
	return s.next(t)
}

// lend makes the sleeper map memory, and returns the byte that it reads there.
func (s *sleeper) lend(t *testing.T, memory *os.File) string {
	t.Helper()
	require.NoError(t, unix.Sendmsg(s.socket, []byte{0}, unix.UnixRights(int(memory.Fd())), nil, 0))
	return s.ask(t, "map")
}

// state asks the driver.
func (s *sleeper) state(t *testing.T) cu.ProcessState {
	t.Helper()
	return ok(s.State())(t)
}

// sleeperSize is what a sleeper has, and what it maps.
const sleeperSize = 64 * mib

// childSleeper does what it is told.
func childSleeper() error {
	dev := get(childDevice())
	drv, ctx := dev.Driver(), get(dev.PrimaryContext())
	own, want := get(ctx.Alloc(sleeperSize)), pattern(sleeperSize, 3)
	must(cu.CopyToDevice(ctx, own.Ptr(), want))
	p := get(drv.ReserveAddress(sleeperSize, 0, 0))
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		switch in.Text() {
		case "map":
			f := receiveFile(3)
			m := get(drv.ImportMemory(f, sleeperSize))
			must(errors.Join(f.Close(), drv.Map(p, sleeperSize, 0, m), m.Close(), drv.SetAccess(p, sleeperSize, cu.ReadOnly, dev)))
			got := make([]byte, 1)
			must(cu.CopyToHost(ctx, got, p))
			fmt.Println(got[0])
		case "unmap":
			must(drv.Unmap(p, sleeperSize))
			fmt.Println("unmapped")
		case "own":
			got := make([]byte, sleeperSize)
			must(cu.CopyToHost(ctx, got, own.Ptr()))
			fmt.Println(bytes.Equal(want, got))
		}
	}
	return errors.Join(drv.FreeAddress(p, sleeperSize), own.Close(), ctx.Close())
}

// receiveFile receives one descriptor.
func receiveFile(socket int) *os.File {
	text, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, text, rights, unix.MSG_CMSG_CLOEXEC)
	must(err)
	fds := get(unix.ParseUnixRights(&get(unix.ParseSocketControlMessage(rights[:n]))[0]))
	return os.NewFile(uintptr(fds[0]), "memory")
}

// C44 of docs/driver-facts.md: a process that has unmapped what others own is restored, and maps that at the same
// address again.
func TestCheckpoint(t *testing.T) {
	drv, lent := checkpointing(t)
	s := newSleeper(t, drv)
	require.Equal(t, "7", s.lend(t, lent))
	require.Equal(t, "unmapped", s.ask(t, "unmap"))
	require.Equal(t, cu.ProcessRunning, s.state(t))
	require.NoError(t, s.Lock(10*time.Second))
	require.Equal(t, cu.ProcessLocked, s.state(t))
	require.NoError(t, s.Checkpoint())
	require.Equal(t, cu.ProcessCheckpointed, s.state(t))
	require.NoError(t, errOf(s.RestoreThreadID()))
	require.NoError(t, s.Restore())
	require.NoError(t, s.Unlock())
	require.Equal(t, cu.ProcessRunning, s.state(t))
	require.Equal(t, "true", s.ask(t, "own"))
	require.Equal(t, "7", s.lend(t, lent))
	require.Equal(t, "unmapped", s.ask(t, "unmap"))
	require.NoError(t, s.in.Close())
	require.NoError(t, s.Wait())
}

// A process is restored to the devices that are named.
func TestCheckpointNamesDevices(t *testing.T) {
	drv, _ := checkpointing(t)
	s := newSleeper(t, drv)
	require.NoError(t, errors.Join(s.Lock(10*time.Second), s.Checkpoint()))
	var same []cu.DevicePair
	for _, dev := range drv.Devices() {
		same = append(same, cu.DevicePair{Old: dev.UUID(), New: dev.UUID()})
	}
	require.NoError(t, errors.Join(s.Restore(same...), s.Unlock()))
	require.Equal(t, "true", s.ask(t, "own"))
}

// C44 of docs/driver-facts.md: a process that has others' memory mapped is lost by a checkpoint, and the memory is not.
func TestCheckpointLosesWhoHasMapped(t *testing.T) {
	drv, lent := checkpointing(t)
	s := newSleeper(t, drv)
	require.Equal(t, "7", s.lend(t, lent))
	require.NoError(t, errors.Join(s.Lock(10*time.Second), s.Checkpoint()))
	require.ErrorIs(t, s.Restore(), cu.ErrNotSupported)
	require.ErrorIs(t, s.Unlock(), cu.ErrIllegalState)
	require.NoError(t, s.Cmd.Process.Kill())
	require.Equal(t, "7", newSleeper(t, drv).lend(t, lent))
}
