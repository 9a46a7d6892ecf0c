package cu_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
)

// An ipcPeer is another process that does what it is told, a line each, with
// memory and events that it shares.
type ipcPeer struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// newPeer starts one, which uses the device of that number.
func newPeer(t testing.TB, device int, env ...string) *ipcPeer {
	t.Helper()
	return startPeer(t, cutest.Child(soon(t), "ipc peer", append(env, fmt.Sprint(peerDevice, "=", device))...))
}

// ownShm runs a program with a /dev/shm of its own, but for the software driver's
// directory, which $1 keeps hold of meanwhile.
const ownShm = `mount --bind "$GPUFD_SOFT_DIR" "$1" && mount -t tmpfs none /dev/shm && mkdir -p "$GPUFD_SOFT_DIR" &&
	mount --bind "$1" "$GPUFD_SOFT_DIR" && exec "$0"`

// isolatedPeer is newPeer in namespaces of its own, as in a container, with a
// /dev/shm of its own or not, or skips t.
func isolatedPeer(t testing.TB, shm bool) *ipcPeer {
	t.Helper()
	cmd, unshare := cutest.Child(soon(t), "ipc peer", peerDevice+"=0"), cutest.Namespaced(t)
	if shm {
		cutest.Front(t, cmd, append(unshare, "sh", "-c", ownShm), t.TempDir())
	} else {
		cutest.Front(t, cmd, unshare)
	}
	return startPeer(t, cmd)
}

func startPeer(t testing.TB, cmd *exec.Cmd) *ipcPeer {
	t.Helper()
	p := &ipcPeer{Cmd: cmd}
	p.in = ok(p.StdinPipe())(t)
	out := ok(p.StdoutPipe())(t)
	p.out, p.Stderr = bufio.NewReader(out), os.Stderr
	require.NoError(t, p.Start())
	t.Cleanup(p.kill)
	return p
}

// ask tells the peer to do something and returns its answer.
func (p *ipcPeer) ask(t testing.TB, what ...any) string {
	t.Helper()
	require.NoError(t, errOf(fmt.Fprintln(p.in, what...)))
	line := ok(p.out.ReadString('\n'))(t, "the answer to %v", what)
	answer := strings.TrimSpace(line)
	require.False(t, strings.HasPrefix(answer, "error"), "%v: %s", what, answer)
	return answer
}

// memory makes the peer allocate size bytes of value, and returns their handle.
func (p *ipcPeer) memory(t testing.TB, size, value int) (h cu.IPCHandle) {
	t.Helper()
	require.NoError(t, h.UnmarshalText([]byte(p.ask(t, "alloc", size, value))))
	return h
}

// event makes the peer create an event, and returns its handle.
func (p *ipcPeer) event(t testing.TB) (h cu.IPCEventHandle) {
	t.Helper()
	require.NoError(t, h.UnmarshalText([]byte(p.ask(t, "event"))))
	return h
}

// kill ends the peer by SIGKILL.
func (p *ipcPeer) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

// end lets the peer give back what it has, and end.
func (p *ipcPeer) end(t testing.TB) {
	t.Helper()
	require.NoError(t, p.in.Close())
	require.NoError(t, p.Wait())
}

const peerDevice = testenv.Prefix + "DEVICE"

// A peerState is what an ipcPeer has.
type peerState struct {
	ctx    *cu.Context
	stream *cu.Stream
	gate   *cu.Memory // a word that hold waits for
	helper *cu.Stream
	memory []*cu.Memory
	events []*cu.Event
	opened []*cu.IPCMemory
}

func childIPCPeer() error {
	drv := get(cutest.Open())
	n := get(strconv.Atoi(os.Getenv(peerDevice)))
	dev := get(drv.Device(n))
	s := &peerState{}
	s.ctx = get(dev.PrimaryContext())
	s.stream = get(s.ctx.NewStream())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		answer, err := s.do(strings.Fields(in.Text()))
		if err != nil {
			answer = "error: " + strings.ReplaceAll(err.Error(), "\n", "; ")
		}
		fmt.Println(answer)
	}
	return s.ctx.Close() // which closes all
}

func (s *peerState) do(words []string) (string, error) {
	var n [2]int
	for i, w := range words[1:] {
		n[i%2], _ = strconv.Atoi(w)
	}
	switch words[0] {
	case "alloc":
		return s.alloc(n[0], n[1])
	case "inside": // memory of some bytes, and the handle of an address in it
		m := get(s.ctx.Alloc(uint64(n[0])))
		s.memory = append(s.memory, m)
		h, offset, err := s.ctx.IPCHandle(m.Ptr().Add(uint64(n[1])))
		return fmt.Sprint(h, " ", offset), err
	case "free":
		return "freed", s.memory[n[0]].Close()
	case "handle":
		h, err := s.memory[n[0]].IPCHandle()
		return h.String(), err
	case "address":
		return s.memory[n[0]].Ptr().String(), nil
	case "filled": // whether memory is full of a value
		b := make([]byte, s.memory[n[0]].Size())
		err := cu.CopyToHost(s.ctx, b, s.memory[n[0]].Ptr())
		return fmt.Sprint(len(b) > 0 && strings.Count(string(b), string([]byte{byte(n[1])})) == len(b)), err
	case "open":
		return s.open(words[1])
	case "event":
		return s.event()
	case "record":
		return "recorded", s.events[n[0]].Record(s.stream)
	case "hold": // what the stream is given now waits until release
		return s.hold()
	case "release":
		return "released", errors.Join(s.helper.WriteValue32(s.gate.Ptr(), 1, cu.WriteDefault), s.stream.Synchronize(context.Background()))
	case "drop":
		return "closed", s.events[n[0]].Close()
	case "wait": // for an event, on the host
		return "happened", s.events[n[0]].Synchronize(context.Background())
	}
	return "", fmt.Errorf("what is %q?", words)
}

func (s *peerState) alloc(size, value int) (string, error) {
	m := get(s.ctx.Alloc(uint64(size)))
	s.memory = append(s.memory, m)
	err := errors.Join(cu.Fill(s.ctx, m.Ptr(), uint8(value), m.Size()), s.ctx.Synchronize(context.Background()))
	if err != nil {
		return "", err
	}
	h, err := m.IPCHandle()
	return h.String(), err
}

// open opens memory and says what its first byte is.
func (s *peerState) open(handle string) (string, error) {
	var h cu.IPCHandle
	must(h.UnmarshalText([]byte(handle)))
	m := get(s.ctx.OpenIPC(h))
	s.opened = append(s.opened, m)
	b := make([]byte, 1)
	err := cu.CopyToHost(s.ctx, b, m.Ptr())
	return fmt.Sprint(b[0]), err
}

func (s *peerState) event() (string, error) {
	e := get(s.ctx.NewEvent(cu.EventInterprocess | cu.EventDisableTiming))
	s.events = append(s.events, e)
	h, err := e.IPCHandle()
	return h.String(), err
}

func (s *peerState) hold() (string, error) {
	var err error
	if s.gate == nil {
		s.gate = get(s.ctx.Alloc(4))
		s.helper = get(s.ctx.NewStream())
	}
	err = errors.Join(
		cu.FillAsync(s.helper, s.gate.Ptr(), uint32(0), 1), s.helper.Synchronize(context.Background()),
		s.stream.WaitValue32(s.gate.Ptr(), 1, cu.WaitEQ))
	return "held", err
}
