package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/pattern"
)

// compiled is the consumer in C, built once.
var compiled = sync.OnceValues(func() (string, error) {
	file := filepath.Join(scratch, "consumer.c.bin")
	out, err := exec.Command("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", file, filepath.Join(Root(), "examples", "c", "consumer.c"), "-ldl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return file, nil
})

// A peer is a program that speaks the protocol, and the modules of Python that it takes
// on a GPU.
type peer struct {
	name    string // as it calls itself
	flags   []string
	modules []string
}

var (
	goProducer = peer{name: "producer"}
	goConsumer = peer{name: "consumer"}
	pyProducer = peer{name: "producer.py"}
	pyConsumer = peer{name: "consumer.py"}
	cConsumer  = peer{name: "consumer.c"}
)

// with is the program with a library of Python, which touches the data on the GPU.
func (p peer) with(library string) peer {
	p.flags = args("-with", library)
	p.modules = append(args(library), p.modules...)
	return p
}

func (p peer) String() string { return strings.Join(append(args(p.name), p.flags...), " ") }

// command is how the program is started, or t is skipped.
func (p peer) command(t testing.TB) []string {
	t.Helper()
	switch filepath.Ext(p.name) {
	case ".py":
		if cutest.Kind() != cu.CUDA {
			return args(python(t), "-B", filepath.Join(pythonDir, p.name))
		}
		return args(python(t, p.modules...), "-B", filepath.Join(pythonDir, p.name))
	case ".c":
		needCC(t)
		file, err := compiled()
		require.NoError(t, err)
		return args(file)
	}
	return args(programPath(t, p.name))
}

// peer starts one on the scene's socket, on the driver that tests run on.
func (s *scene) peer(p peer, more ...string) *process {
	s.t.Helper()
	line := append(append(p.command(s.t), "-socket", s.socket), p.flags...)
	return start(s.t, p.name, line[0], args("GPUFD_DRIVER="+kindName()), append(line[1:], more...)...)
}

// servingPeer starts a producer and waits until it serves.
func (s *scene) servingPeer(p peer, more ...string) *process {
	s.t.Helper()
	producer := s.peer(p, more...)
	producer.waitLine("Waiting for consumer connection...")
	return producer
}

// A pair is who hands over to whom.
type pair struct{ producer, consumer peer }

func (p pair) String() string { return fmt.Sprintf("%v to %v", p.producer, p.consumer) }

// pairs are those that work on either driver.
var pairs = []pair{
	{goProducer, pyConsumer},
	{pyProducer, goConsumer},
	{pyProducer, pyConsumer},
	{goProducer, cConsumer},
	{pyProducer, cConsumer},
}

// TestInteropDefaultSocket: without a flag the programs meet in one place, whatever the
// language, where the environment names a directory of the user's or of temporary files.
func TestInteropDefaultSocket(t *testing.T) {
	cutest.ProvenOnSoft(t)
	all := []pair{{goProducer, pyConsumer}, {goProducer, cConsumer}, {pyProducer, goConsumer}}
	eachPair(t, all, func(t *testing.T, p pair) {
		for _, name := range args("XDG_RUNTIME_DIR", "TMPDIR") {
			s := meeting(t)
			s.keep("gpufd", fmt.Sprintf("gpufd-%d", os.Getuid())) // the directory of the socket
			env := args("GPUFD_DRIVER="+kindName(), "XDG_RUNTIME_DIR=", name+"="+s.dir)
			run := func(p peer) *process {
				line := p.command(t)
				return start(t, p.name, line[0], env, line[1:]...)
			}
			producer := run(p.producer)
			producer.waitLine("Waiting for consumer connection...")
			run(p.consumer).succeeds()
			producer.succeeds()
		}
	})
}

// ours reports whether a program of gpufd is among the two.
func (p pair) ours() bool {
	return p.producer.name == goProducer.name || p.consumer.name == goConsumer.name
}

// provenUnlessOurs skips t on a GPU if neither program is of gpufd.
func (p pair) provenUnlessOurs(t *testing.T) {
	t.Helper()
	if !p.ours() {
		cutest.ProvenOnSoft(t)
	}
}

// eachPair calls f for each. Where programs are emulated it is for ours: the others are
// those of the machine.
func eachPair(t *testing.T, pairs []pair, f func(t *testing.T, p pair)) {
	for _, p := range pairs {
		if cutest.Emulated() && !p.ours() {
			continue
		}
		t.Run(p.String(), func(t *testing.T) {
			p.producer.command(t) // what is missing is noticed here
			p.consumer.command(t)
			f(t, p)
		})
	}
}

// passOn has a pair hand a buffer over.
func passOn(t *testing.T, p pair, flags ...string) {
	t.Helper()
	s := meeting(t)
	producer := s.servingPeer(p.producer, flags...)
	s.peer(p.consumer).succeeds()
	producer.succeeds()
}

// TestInterop: memory goes from one language to another, in buffers of one byte to so
// many chunks that their descriptors take two records.
func TestInterop(t *testing.T) {
	large := args("-size", decimal(65*2*mib-3), "-chunk", "2MiB")
	sizes := [][]string{args("-size", "1")}
	if !testing.Short() {
		sizes = append(sizes,
			args("-size", "3", "-salt", "0x5EED"),
			args("-size", decimal(4*mib+2)),
			args("-size", decimal(10*mib+1), "-chunk", "2MiB", "-salt", "4294967295"),
		)
	}
	eachPair(t, pairs, func(t *testing.T, p pair) {
		sizes := slices.Clip(sizes)
		if p.ours() && !(testing.Short() && p.consumer.name == pyConsumer.name) { // it takes Python seconds
			sizes = append(sizes, large)
		}
		for _, flags := range sizes {
			t.Run(strings.Join(flags, " "), func(t *testing.T) {
				onGPU := "1"
				if p.ours() {
					onGPU = large[1]
				}
				if flags[1] != onGPU {
					cutest.ProvenOnSoft(t)
				}
				passOn(t, p, flags...)
			})
		}
	})
}

// TestInteropLibraries: CuPy and PyTorch fill and compare the shared memory with kernels
// of theirs, as arrays over it without a copy; ours and plain copies do on the other side.
func TestInteropLibraries(t *testing.T) {
	needGPU(t, "CuPy and PyTorch take memory of one")
	for _, library := range args("cupy", "torch") {
		eachPair(t, []pair{
			{goProducer, pyConsumer.with(library)},
			{pyProducer.with(library), goConsumer},
			{pyProducer.with(library), cConsumer},
			{pyProducer, pyConsumer.with(library)},
		}, func(t *testing.T, p pair) {
			p.provenUnlessOurs(t)
			passOn(t, p, "-size", decimal(130*mib+3), "-chunk", "2MiB", "-salt", "77") // a library takes seconds to begin
			if cutest.All() {
				passOn(t, p, "-size", decimal(130*mib+3), "-salt", "77")
			}
		})
	}
}

// TestInteropLegacy: by a handle of legacy IPC, with memory of cuMemAlloc, and of CuPy and
// PyTorch, whose arrays lie somewhere in larger allocations; opened by the package, by
// CuPy's runtime API, and under a tensor of PyTorch.
func TestInteropLegacy(t *testing.T) {
	needGPU(t, "a legacy handle of the software driver is for its own processes")
	all := []pair{{goProducer, pyConsumer}, {pyProducer, goConsumer}, {pyProducer, pyConsumer}, {goProducer, cConsumer}, {pyProducer, cConsumer}}
	for _, library := range args("cupy", "torch") {
		all = append(all, pair{goProducer, pyConsumer.with(library)}, pair{pyProducer.with(library), goConsumer},
			pair{pyProducer.with(library), pyConsumer}, pair{pyProducer.with(library), cConsumer}, pair{pyProducer.with(library), pyConsumer.with(library)})
	}
	eachPair(t, all, func(t *testing.T, p pair) {
		library := len(p.producer.flags)+len(p.consumer.flags) > 0 // it takes seconds to begin
		sizes := []uint64{10*mib + 1}
		if library {
			p.provenUnlessOurs(t)
			sizes = []uint64{130 * mib}
		}
		if cutest.All() {
			sizes = []uint64{1, 4*kib + 3, 10*mib + 1, 130 * mib}
		}
		for _, size := range sizes {
			passOn(t, p, "-handle", "legacy", "-size", decimal(size), "-salt", "77")
		}
		if (library || !p.ours()) && !cutest.All() {
			return
		}
		s := meeting(t)
		producer := s.servingPeer(p.producer, "-handle", "legacy", "-salt", "7")
		s.peer(p.consumer, "-expect-salt", "8").fails(1, "first at index 0")
		producer.fails(1, "the consumer reports", "first at index 0")
	})
}

// TestInteropLegacyKilled: whoever dies, the other ends clearly.
func TestInteropLegacyKilled(t *testing.T) {
	needGPU(t, "a legacy handle of the software driver is for its own processes")
	eachPair(t, []pair{{goProducer, pyConsumer}, {pyProducer, goConsumer}, {goProducer, cConsumer}}, func(t *testing.T, p pair) {
		s := meeting(t)
		producer := s.servingPeer(p.producer, "-handle", "legacy")
		producer.stop()
		consumer := s.peer(p.consumer)
		consumer.waitLine("Connected to producer")
		s.kill(producer)
		consumer.fails(4)

		producer = s.servingPeer(p.producer, "-handle", "legacy", "-consumers", "2")
		consumer = s.relayed(t, nil, unsaid(typeVerdict)).peer(p.consumer)
		consumer.waitLine("Received")
		consumer.kill()
		s.peer(p.consumer).succeeds()
		require.Equal(t, 4, producer.wait(), producer.dump())
	})
}

// TestInteropLegacySoftware: a program without the software driver cannot open what
// stands for a legacy handle there, and does not say that it takes one.
func TestInteropLegacySoftware(t *testing.T) {
	if cutest.Kind() != cu.Soft {
		t.Skip("the software driver's own")
	}
	for _, c := range []peer{pyConsumer, cConsumer} {
		t.Run(c.String(), func(t *testing.T) {
			c.command(t)
			s := meeting(t)
			producer := s.serving("-handle", "legacy")
			s.peer(c).fails(1, "refused", "(code 10)")
			s.consumer().succeeds()
			producer.succeeds()
		})
	}
	pyProducer.command(t)
	meeting(t).peer(pyProducer, "-handle", "legacy").fails(3, "the software driver's legacy handles are for its own processes")
	meeting(t).peer(pyProducer, "-handle", "legacy", "-chunk", "2MiB").fails(2, "--chunk")
}

// TestInteropReadWrite: a consumer of another language that asks for it maps the memory
// read-write, and is refused where the offer does not give that.
func TestInteropReadWrite(t *testing.T) {
	eachPair(t, pairs, func(t *testing.T, p pair) {
		p.provenUnlessOurs(t)
		s := meeting(t)
		producer := s.servingPeer(p.producer, "-access", "rw")
		s.peer(p.consumer, "-access", "rw").succeeds()
		producer.succeeds()

		producer = s.servingPeer(p.producer)
		s.peer(p.consumer, "-access", "rw").fails(1, "read-only")
		s.peer(p.consumer).succeeds()
		producer.succeeds()
	})
}

// TestInteropWrongData defends invariant 6 in other languages: both sides fail, and name
// the integer.
func TestInteropWrongData(t *testing.T) {
	eachPair(t, pairs, func(t *testing.T, p pair) {
		p.provenUnlessOurs(t)
		s := meeting(t)
		producer := s.servingPeer(p.producer, "-size", "1030", "-salt", "7")
		s.peer(p.consumer, "-expect-salt", "8").fails(1, "first at index 0, want 0xdeadbbde, got 0xdeadbbd1; 258 integers are wrong")
		producer.fails(1, "the consumer reports", "first at index 0, want 0xdeadbbde, got 0xdeadbbd1; 258 integers are wrong")
	})
}

// TestInteropFlippedBit: one bit anywhere.
func TestInteropFlippedBit(t *testing.T) {
	for _, consumer := range []peer{pyConsumer, cConsumer} {
		t.Run(consumer.String(), func(t *testing.T) {
			consumer.command(t)
			s := meeting(t)
			producer := s.flipped(10*mib+1, 2*mib, 4*mib-1, 7)
			s.peer(consumer).fails(1, "first at index 1048575, want 0x", "; 1 integer is wrong")
			producer.fails(1, "first at index 1048575")
		})
	}
}

// TestInteropProducerKilled: the consumer ends, exit 4, and whoever comes next takes the
// socket over, whatever the language of the one that died.
func TestInteropProducerKilled(t *testing.T) {
	eachPair(t, pairs, func(t *testing.T, p pair) {
		p.provenUnlessOurs(t)
		s := meeting(t)
		producer := s.servingPeer(p.producer)
		producer.stop()
		consumer := s.peer(p.consumer)
		consumer.waitLine("Connected to producer")
		s.kill(producer)
		consumer.fails(4)
		s.kill(s.servingPeer(p.producer))
		s.reclaimed()
	})
}

// TestInteropConsumerKilled: the producer knows at once, and serves the next.
func TestInteropConsumerKilled(t *testing.T) {
	eachPair(t, []pair{{pyProducer, goConsumer}, {goProducer, pyConsumer}, {goProducer, cConsumer}}, func(t *testing.T, p pair) {
		s := meeting(t)
		producer := s.servingPeer(p.producer, "-consumers", "2")
		consumer := s.relayed(t, nil, unsaid(typeVerdict)).peer(p.consumer)
		consumer.waitLine("Received")
		consumer.kill()
		s.peer(p.consumer).succeeds()
		require.Equal(t, 4, producer.wait(), producer.dump())
	})
}

// TestInteropRevoked: a producer that is interrupted tells its consumers, and the
// signal is no failure of it.
func TestInteropRevoked(t *testing.T) {
	eachPair(t, pairs, func(t *testing.T, p pair) {
		p.provenUnlessOurs(t)
		s := meeting(t)
		producer := s.servingPeer(p.producer)
		consumer := s.relayed(t, nil, unsaid(typeVerdict)).peer(p.consumer)
		consumer.waitLine("Received")
		consumer.stop()
		producer.signal(syscall.SIGTERM)
		producer.wait()
		require.NoError(t, resume(consumer))
		require.Regexp(t, "revoked by the producer|the producer ended the offer", consumer.fails(4))
	})
}

// TestInteropInterrupted: a producer that is interrupted before it serves has failed.
func TestInteropInterrupted(t *testing.T) {
	producer := meeting(t).peer(pyProducer, "-size", "512MiB") // which it fills for seconds
	producer.waitLine("Made")
	producer.signal(syscall.SIGTERM)
	producer.fails(1, "interrupted")
}

// TestInteropNobody: no producer, and no consumer.
func TestInteropNobody(t *testing.T) {
	cutest.ProvenOnSoft(t)
	for _, c := range []peer{pyConsumer, cConsumer} {
		t.Run(c.String(), func(t *testing.T) {
			meeting(t).peer(c, "-timeout", "300ms").fails(1, "nobody is listening there")
			meeting(t).peer(c, "-socket", "/"+strings.Repeat("x", 107)).fails(2, "1 to 107 bytes")
			meeting(t).peer(c, "-nonsense", "1").fails(2)
			start(t, c.name, c.command(t)[0], args("GPUFD_DRIVER=nonsense"), c.command(t)[1:]...).fails(2, "auto, cuda or soft")
		})
	}
	t.Run(pyProducer.String(), func(t *testing.T) {
		meeting(t).peer(pyProducer, "-timeout", "100ms").fails(4, "no consumer came")
		meeting(t).peer(pyProducer, "-size", "x").fails(2, "want bytes")
	})
}

// TestInteropConsumerFirst: a consumer waits for its producer, as ours does, and says so.
func TestInteropConsumerFirst(t *testing.T) {
	cutest.ProvenOnSoft(t)
	for _, p := range []peer{goProducer, pyProducer} {
		t.Run(p.String(), func(t *testing.T) {
			s := meeting(t)
			consumer := s.peer(pyConsumer)
			consumer.waitLine("  no producer is there yet: waiting for one, for 30 s at most")
			producer := s.peer(p)
			consumer.succeeds()
			producer.succeeds()
		})
	}
}

// TestInteropOneProducer: a socket has one producer, whatever the languages.
func TestInteropOneProducer(t *testing.T) {
	cutest.ProvenOnSoft(t)
	eachPair(t, []pair{{goProducer, pyProducer}, {pyProducer, goProducer}, {pyProducer, pyProducer}}, func(t *testing.T, p pair) {
		s := meeting(t)
		first := s.servingPeer(p.producer)
		s.peer(p.consumer).fails(1, s.socket)
		s.consumer().succeeds()
		first.succeeds()
	})
}

// TestInteropSilence: who says nothing is given up, in time.
func TestInteropSilence(t *testing.T) {
	cutest.ProvenOnSoft(t)
	eachPair(t, pairs, func(t *testing.T, p pair) {
		s := meeting(t)
		producer := s.servingPeer(p.producer, "-consumers", "0")
		producer.stop()
		s.peer(p.consumer, "-timeout", "100ms").fails(4, "took")
		require.NoError(t, resume(producer))
		s.peer(p.consumer).succeeds()
		producer.signal(syscall.SIGTERM)
		require.Contains(t, []int{0, 4}, producer.wait(), "depends on how much of the first one it has seen: "+producer.dump())
	})
}

// TestInteropOtherUser: who is not admitted hears so and gets nothing, and one that is
// not our user's is not listened to.
func TestInteropOtherUser(t *testing.T) {
	other := syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUID, Gid: otherGID}}
	t.Run("the producer does not admit", func(t *testing.T) {
		s := openScene(t)
		producer := s.servingPeer(pyProducer, "-consumers", "0")
		require.NoError(t, os.Chmod(s.socket, 0o666))
		s.startAs(other, "consumer", "-allow-uid", decimal(0)).fails(1, "does not admit")
		require.Contains(t, producer.waitLine("  turned a peer away"), "uid 12345 is not admitted")
		producer.signal(syscall.SIGTERM)
		require.Equal(t, 0, producer.wait(), producer.dump())
	})
	for _, c := range []peer{pyConsumer, cConsumer} {
		t.Run(c.String()+" does not admit", func(t *testing.T) {
			c.command(t)
			s := openScene(t)
			require.NoError(t, os.Chown(s.dir, otherUID, otherGID))
			producer := s.startAs(other, "producer", "-allow-uid", decimal(0), "-consumers", "0")
			producer.waitLine("Waiting for consumer connection...")
			s.peer(c).fails(1, "uid 12345 is not admitted")
			if cutest.Kind() == cu.Soft {
				s.peer(c, "-allow-uid", decimal(otherUID)).succeeds()
			}
			producer.signal(syscall.SIGTERM)
			producer.wait()
		})
	}
}

// TestInteropLegacyRaw: programs that know nothing of us but the 64 bytes and an offset.
func TestInteropLegacyRaw(t *testing.T) {
	needGPU(t, "a legacy handle of the software driver is for its own processes")
	raw := func(t *testing.T, more ...string) *exec.Cmd {
		return exec.Command(python(t, "cupy"), append(args("-B", filepath.Join(pythonDir, "legacy_raw.py")), more...)...)
	}
	const size, salt = 3*mib + 2, 77
	data := make([]byte, size)
	pattern.Fill(data, 0, salt)
	meeting(t)
	ctx := cutest.Context(t, cutest.Device(t))

	t.Run("opens ours", func(t *testing.T) {
		const at = 4096
		mem, err := ctx.Alloc(at + size)
		require.NoError(t, err)
		defer func() { require.NoError(t, mem.Close()) }()
		require.NoError(t, cu.CopyToDevice(ctx, mem.Ptr().Add(at), data))
		h, offset, err := ctx.IPCHandle(mem.Ptr().Add(at))
		require.NoError(t, err)
		out, err := raw(t, "open", h.String(), decimal(offset), decimal(size), "77").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "PASSED")
		out, err = raw(t, "open", h.String(), decimal(offset), decimal(size), "78").CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "first at index 0")
	})
	t.Run("its memory is opened here", func(t *testing.T) {
		p := raw(t, "own", decimal(size), "77")
		in, err := p.StdinPipe()
		require.NoError(t, err)
		out, err := p.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, p.Start())
		defer func() { require.NoError(t, p.Wait()) }()
		defer in.Close()
		var h, offset string
		_, err = fmt.Fscan(out, &h, &offset)
		require.NoError(t, err)
		var handle cu.IPCHandle
		require.NoError(t, handle.UnmarshalText([]byte(h)))
		mem, err := ctx.OpenIPC(handle)
		require.NoError(t, err)
		got := make([]byte, size)
		require.NoError(t, cu.CopyToHost(ctx, got, mem.Ptr()))
		require.Equal(t, "0", offset)
		require.True(t, string(data) == string(got))
		require.NoError(t, mem.Close())
	})
}
