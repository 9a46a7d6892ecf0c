package interop

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/pattern"
)

// stub is a libcuda that has legacy IPC and nothing else, built once, for programs of the
// machine: testdata/libcuda.c.
var stub = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(programs.Scratch, "stub")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	out, err := exec.Command("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
		"-o", filepath.Join(dir, "libcuda.so.1"), "testdata/libcuda.c").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return dir, nil
})

// A stubbed is a consumer in C on that libcuda, which takes legacy memory of a producer on
// the software driver: a relay between the two has the offer be of the stub's memory.
type stubbed struct {
	t        *testing.T
	scene    *programs.Scene
	producer *programs.Process
	memory   string      // the file that is the memory
	log      string      // of what was opened and closed
	closed   atomic.Bool // it had closed all when it said its verdict
}

// stubOffset is where the offer's memory begins in the stub's.
const stubOffset = 4096

// newStubbed starts the producer, and has the stub's memory hold size bytes of the pattern.
func newStubbed(t *testing.T, size uint64, flags ...string) *stubbed {
	t.Helper()
	if cutest.Kind() != cu.Soft {
		t.Skip("the stub stands for a GPU where there is none")
	}
	cConsumer.command(t)
	dir := t.TempDir()
	b := &stubbed{t: t, scene: programs.NewScene(t), memory: filepath.Join(dir, "memory"), log: filepath.Join(dir, "log")}
	data := make([]byte, size)
	pattern.Fill(data, 0, 77)
	b.write(stubOffset, data)
	require.NoError(t, os.Truncate(b.memory, int64(stubOffset+size+4*programs.MiB)))
	require.NoError(t, os.WriteFile(b.log, nil, 0o600))
	b.producer = b.scene.Serving(append(args("-handle", "legacy", "-size", programs.Decimal(size), "-salt", "77", "-fill", "cpu"), flags...)...)
	return b
}

func (b *stubbed) write(at int64, data []byte) {
	b.t.Helper()
	f, err := os.OpenFile(b.memory, os.O_CREATE|os.O_WRONLY, 0o600)
	require.NoError(b.t, err)
	_, err = f.WriteAt(data, at)
	require.NoError(b.t, err)
	require.NoError(b.t, f.Close())
}

// history is what was opened and closed.
func (b *stubbed) history() string {
	h, err := os.ReadFile(b.log)
	require.NoError(b.t, err)
	return string(h)
}

// consumer starts the one in C, whose offer goes past the edit; env is more for the stub.
func (b *stubbed) consumer(f programs.Edit, env ...string) *programs.Process {
	b.t.Helper()
	libcuda, err := stub()
	require.NoError(b.t, err)
	handle := make([]byte, 64)
	for i := range handle {
		handle[i] = byte(3*i + 1)
	}
	aboutStub := programs.OnlyOf(programs.TypeOffer, programs.All(programs.Put(programs.Body, byte(cu.CUDA)), programs.Changed(programs.AtChunkSize, func(n uint64) uint64 { return n + 2*programs.MiB }),
		programs.Changed(programs.AtOffset, programs.Becomes(stubOffset)), programs.Put(programs.AtHandle, handle...)))
	r := b.scene.Relayed(b.t, programs.All(aboutStub, f), programs.All(
		programs.OnlyOf(programs.TypeAttach, programs.Put(programs.Body, byte(cu.Soft))),
		programs.OnlyOf(programs.TypeVerdict, func(*programs.Message) { b.closed.Store(b.history() == "opened\nclosed\n") })))
	env = append(env, "LD_LIBRARY_PATH="+libcuda, "GPUFD_DRIVER=cuda", "STUB_MEMORY="+b.memory, "STUB_LOG="+b.log)
	return programs.Start(b.t, cConsumer.name, cConsumer.command(b.t)[0], env, "-socket", r.Socket)
}

// TestLegacyByC: legacy memory is opened by the handle that is passed by value, at its
// offset, whether its device is visible or not, and closed before the producer is told.
func TestLegacyByC(t *testing.T) {
	programs.Parallel(t)
	for name, device := range map[string]byte{"visible": 0xa5, "hidden": 1} {
		for _, size := range []uint64{1, 4099, 3*programs.MiB + 2} {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				programs.Parallel(t)
				b := newStubbed(t, size)
				b.consumer(programs.OnlyOf(programs.TypeOffer, programs.Put(programs.AtDevice, bytes.Repeat([]byte{device}, 16)...))).Succeeds()
				b.producer.Succeeds()
				require.True(t, b.closed.Load(), b.history())
			})
		}
	}
}

// TestLegacyByCFails: what is wrong is said to the producer after the memory was closed.
func TestLegacyByCFails(t *testing.T) {
	programs.Parallel(t)
	offers := func(f programs.Edit) programs.Edit { return programs.OnlyOf(programs.TypeOffer, f) }
	for name, c := range map[string]struct {
		f      programs.Edit
		env    []string
		code   int
		says   string
		opened bool
	}{
		"another handle":         {f: offers(programs.Put(programs.AtHandle+63, 0)), code: 1, says: "cuIpcOpenMemHandle_v2: STUB_ERROR (1)"},
		"not supported":          {env: args("STUB_OPEN=801"), code: 3, says: "cuIpcOpenMemHandle_v2: STUB_ERROR (801)"},
		"a larger allocation":    {f: offers(programs.Changed(programs.AtChunkSize, programs.Becomes(1<<40))), code: 1, says: "the offer says 1099511627776", opened: true},
		"another generation":     {f: programs.OnlyOf(programs.TypeConfirm, programs.Changed(programs.Body, programs.Becomes(5))), code: 1, says: "where CONFIRM is expected", opened: true},
		"no memory of its":       {f: offers(programs.Changed(programs.AtOffset, programs.Becomes(1<<64-1))), code: 1, says: "at 18446744073709551615 of an allocation"},
		"size 0":                 {f: offers(programs.Changed(programs.AtSize, programs.Becomes(0))), code: 1, says: "0 bytes at"},
		"two chunks":             {f: offers(programs.Put(programs.AtChunks, 2)), code: 1, says: "one chunk"},
		"read-only":              {f: offers(programs.Put(programs.Body+1, 1)), code: 1, says: "can be written"},
		"with granularity":       {f: offers(programs.Put(programs.AtGranularity, 1)), code: 1, says: "granularity"},
		"with a descriptor":      {f: offers(programs.Sends(os.Stdin)), code: 1, says: "without descriptors"},
		"too short":              {f: offers(func(m *programs.Message) { m.Record = m.Record[:len(m.Record)-32]; m.Record[programs.AtLength] -= 32 }), code: 1, says: "lengths make no sense"}, // and no fields
		"one more of each other": {f: programs.OnlyOf(programs.TypeConfirm, programs.Put(programs.AtType, 8)), code: 1, says: "where CONFIRM is expected", opened: true},
	} {
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			b := newStubbed(t, 5000)
			f := c.f
			if f == nil {
				f = func(*programs.Message) {}
			}
			b.consumer(f, c.env...).Fails(c.code, c.says)
			require.Contains(t, []int{1, 4}, b.producer.Wait(), b.producer.Dump())
			require.Equal(t, c.opened, b.closed.Load(), b.history())
		})
	}
	t.Run("wrong data", func(t *testing.T) {
		programs.Parallel(t)
		b := newStubbed(t, 5000)
		b.write(stubOffset+4*100, []byte{0xff})
		b.consumer(func(*programs.Message) {}).Fails(1, "first at index 100, want 0x")
		b.producer.Fails(1, "first at index 100")
		require.True(t, b.closed.Load(), b.history())
	})
}

// TestLegacyByCRevoked: a producer that wants its memory back waits until it is closed, and
// no longer once the consumer is killed.
func TestLegacyByCRevoked(t *testing.T) {
	programs.Parallel(t)
	for name, killed := range map[string]bool{"it closes": false, "it is killed": true} {
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			b := newStubbed(t, 5000)
			hold := b.log + ".hold"
			require.NoError(t, os.WriteFile(hold, nil, 0o600))
			confirmed, revoked := make(chan struct{}), make(chan struct{})
			consumer := b.consumer(programs.All(
				programs.OnlyOf(programs.TypeConfirm, func(*programs.Message) { close(confirmed) }),
				programs.OnlyOf(programs.TypeRevoke, func(m *programs.Message) { m.Sent = func() { close(revoked) } })), "STUB_HOLD="+hold)
			<-confirmed // and from then on it is held
			b.producer.Signal(syscall.SIGTERM)
			b.producer.WaitLine("  waiting for consumers to close the memory (1)")
			<-revoked
			require.False(t, b.producer.Ended())
			if killed {
				consumer.Kill()
			} else {
				require.NoError(t, os.Remove(hold))
				consumer.Fails(4, "withdrawn by the producer")
				require.Equal(t, "opened\nclosed\n", b.history())
			}
			b.producer.Succeeds()
		})
	}
}

// TestInteropRefusedVerdict: what a producer says of a verdict stands for the same exit
// code as before it, 4 if that is that the consumer was too slow.
func TestInteropRefusedVerdict(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	for _, consumer := range []peer{goConsumer, pyConsumer, cConsumer} {
		for code, exit := range map[byte]int{6: 1, 7: 4} {
			t.Run(fmt.Sprint(consumer, " ", code), func(t *testing.T) {
				programs.Parallel(t)
				consumer.command(t)
				s := programs.Meeting(t)
				producer := s.Serving()
				r := s.Relayed(t, programs.OnlyOf(programs.TypeRefuse, programs.Put(programs.Body, code)), programs.OnlyOf(programs.TypeVerdict, programs.Put(programs.Body, 9)))
				startPeer(r, consumer).Fails(exit, "refused")
				producer.Fails(1, "verdict")
			})
		}
	}
}
