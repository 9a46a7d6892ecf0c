package conformance

import (
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

// heldSize is how much the processes below hold.
const heldSize = 16 * unit

func init() {
	children["producer"] = producer
	children["holder"] = hold
}

// producer makes memory full of 90, passes its descriptor on through the
// socket that is descriptor 3, and keeps the memory until it ends.
func producer() error {
	t := &childTB{}
	c := inContext(t)
	p, h := buffer(t, heldSize)
	ok(t, c.CuMemsetD8_v2(p, 90, heldSize))
	ok(t, c.CuCtxSynchronize())
	if err := unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(exported(t, h).Fd())), nil, 0); err != nil {
		return err
	}
	return hold()
}

// hold keeps what the process has until its input ends. It loads no driver.
func hold() error {
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// process starts a child with a file as descriptor 3.
func process(t testing.TB, name string, file *os.File) *exec.Cmd {
	t.Helper()
	cmd := cutest.Child(soon(t), name)
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{file}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { kill(cmd) })
	return cmd
}

// kill ends a child by SIGKILL.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// produced starts a producer and returns its memory's descriptor.
func produced(t testing.TB) (*exec.Cmd, *os.File) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	cmd := process(t, "producer", theirs)
	require.NoError(t, theirs.Close())
	buf, control := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, oobn, _, _, err := unix.Recvmsg(pair[0], buf, control, unix.MSG_CMSG_CLOEXEC)
	require.NoError(t, err)
	require.Equal(t, 1, n, "the producer ended")
	messages, err := unix.ParseSocketControlMessage(control[:oobn])
	require.NoError(t, err)
	require.Len(t, messages, 1)
	fds, err := unix.ParseUnixRights(&messages[0])
	require.NoError(t, err)
	f := os.NewFile(uintptr(fds[0]), "device memory")
	t.Cleanup(func() { f.Close() })
	return cmd, f
}

// settles waits for the device's free memory to be so much again: after a
// SIGKILL the driver takes a moment.
func settles(t testing.TB, c sys.Caller, want uintptr) bool {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for freeBytes(t, c) != want && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	return freeBytes(t, c) == want
}

// consume imports, maps and reads.
func consume(t testing.TB, c sys.Caller, f *os.File) (read func() any) {
	h := imported(t, f)
	p := reserved(t, heldSize)
	mapped(t, p, heldSize, h)
	allowed(t, p, heldSize, readWrite)
	return func() any { return byteAt(c, p+heldSize-1) }
}

//fault:rows 2
func TestD10_ProducerKilledBeforeMapping(t *testing.T) {
	c := inContext(t)
	cmd, f := produced(t)
	kill(cmd)
	check(t, "the data is there", 90, consume(t, c, f)())
}

//fault:rows 3
func TestD10_ProducerKilledAfterMapping(t *testing.T) {
	c := inContext(t)
	cmd, f := produced(t)
	read := consume(t, c, f)
	check(t, "the data is there before", 90, read())
	kill(cmd)
	check(t, "and after", 90, read())
}

//fault:rows 6
func TestD10_MemoryReturns(t *testing.T) {
	c := inContext(t)
	before := freeBytes(t, c)
	cmd, f := produced(t)
	kill(cmd)
	check(t, "the descriptor keeps the memory alone", true, settles(t, c, before-heldSize))
	check(t, "closing it", nil, f.Close())
	check(t, "frees it", true, settles(t, c, before))
}

//fault:rows 9
func TestD11_DescriptorKeepsTheMemory(t *testing.T) {
	c := inContext(t)
	before := freeBytes(t, c)
	cmd, f := produced(t)
	holder := process(t, "holder", f)
	kill(cmd)
	check(t, "closing one's own descriptor", nil, f.Close())
	check(t, "leaves the memory to who holds another", true, settles(t, c, before-heldSize))
	kill(holder)
	check(t, "whose end frees it", true, settles(t, c, before))
}
