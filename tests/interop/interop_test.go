package interop

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

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/pattern"
)

// compiled is the consumer in C, built once.
var compiled = sync.OnceValues(func() (string, error) { return cc("consumer.c") })

// cc compiles a program of examples/c and returns where it is.
func cc(name string) (string, error) {
	file := filepath.Join(programs.Scratch, name+".bin")
	out, err := exec.Command("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", file, filepath.Join(programs.Root(), "examples", "c", name), "-ldl").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return file, nil
}

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
			return args(programs.Python(t), "-B", filepath.Join(programs.PythonDir, p.name))
		}
		return args(programs.Python(t, p.modules...), "-B", filepath.Join(programs.PythonDir, p.name))
	case ".c":
		programs.NeedCC(t)
		file := ok(compiled())(t)
		return args(file)
	}
	return args(programs.ProgramPath(t, p.name))
}

// peer starts one on the scene's socket, on the driver that tests run on.
func startPeer(s *programs.Scene, p peer, more ...string) *programs.Process {
	s.T.Helper()
	line := append(append(p.command(s.T), "-socket", s.Socket), p.flags...)
	return programs.Start(s.T, p.name, line[0], args("GPUFD_DRIVER="+programs.KindName()), append(line[1:], more...)...)
}

// servingPeer starts a producer and waits until it serves.
func servingPeer(s *programs.Scene, p peer, more ...string) *programs.Process {
	s.T.Helper()
	producer := startPeer(s, p, more...)
	producer.WaitLine("Waiting for consumer connection...")
	return producer
}

// A pair is who hands over to whom.
type pair struct{ producer, consumer peer }

func (p pair) String() string { return fmt.Sprintf("%v to %v", p.producer, p.consumer) }

// Pairs that work on either driver: those in which one program is of gpufd, and all. What a side does
// when the other fails is tested with ours, which each program meets.
var (
	withOurs = []pair{{goProducer, pyConsumer}, {pyProducer, goConsumer}, {goProducer, cConsumer}}
	pairs    = append(slices.Clone(withOurs), pair{pyProducer, pyConsumer}, pair{pyProducer, cConsumer})
)

// TestInteropDefaultSocket: without a flag the programs meet in one place, whatever the
// language, where the environment names a directory of the user's or of temporary files.
func TestInteropDefaultSocket(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	eachPair(t, withOurs, func(t *testing.T, p pair) {
		for _, name := range args("XDG_RUNTIME_DIR", "TMPDIR") {
			s := programs.Meeting(t)
			s.Keep("gpufd", fmt.Sprintf("gpufd-%d", os.Getuid())) // the directory of the socket
			env := args("GPUFD_DRIVER="+programs.KindName(), "XDG_RUNTIME_DIR=", name+"="+s.Dir)
			run := func(p peer) *programs.Process {
				line := p.command(t)
				return programs.Start(t, p.name, line[0], env, line[1:]...)
			}
			producer := run(p.producer)
			producer.WaitLine("Waiting for consumer connection...")
			run(p.consumer).Succeeds()
			producer.Succeeds()
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
			programs.Parallel(t)
			p.producer.command(t) // what is missing is noticed here
			p.consumer.command(t)
			f(t, p)
		})
	}
}

// passOn has a pair hand a buffer over.
func passOn(t *testing.T, p pair, flags ...string) {
	t.Helper()
	s := programs.Meeting(t)
	producer := servingPeer(s, p.producer, flags...)
	startPeer(s, p.consumer).Succeeds()
	producer.Succeeds()
}

// TestInterop: memory goes from one language to another, in buffers of one byte to so
// many chunks that their descriptors take two records.
func TestInterop(t *testing.T) {
	programs.Parallel(t)
	large := args("-size", programs.Decimal(65*2*programs.MiB-3), "-chunk", "2MiB")
	sizes := [][]string{args("-size", "1")}
	if !testing.Short() {
		sizes = append(sizes,
			args("-size", "3", "-salt", "0x5EED"),
			args("-size", programs.Decimal(4*programs.MiB+1), "-chunk", "2MiB", "-salt", "4294967295"),
		)
	}
	eachPair(t, pairs, func(t *testing.T, p pair) {
		sizes := slices.Clip(sizes)
		if p.ours() && (cutest.Kind() == cu.CUDA || p.consumer.name == cConsumer.name) { // Python takes long: see its test_many_chunks
			sizes = append(sizes, large)
		}
		for _, flags := range sizes {
			t.Run(strings.Join(flags, " "), func(t *testing.T) {
				programs.Parallel(t)
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
	programs.Parallel(t)
	programs.SkipOnSoft(t, "CuPy and PyTorch take memory of one")
	for _, library := range args("cupy", "torch") {
		eachPair(t, []pair{
			{goProducer, pyConsumer.with(library)},
			{pyProducer.with(library), goConsumer},
			{pyProducer.with(library), cConsumer},
			{pyProducer, pyConsumer.with(library)},
		}, func(t *testing.T, p pair) {
			p.provenUnlessOurs(t)
			passOn(t, p, "-size", programs.Decimal(130*programs.MiB+3), "-chunk", "2MiB", "-salt", "77") // a library takes seconds to begin
			if cutest.All() {
				passOn(t, p, "-size", programs.Decimal(130*programs.MiB+3), "-salt", "77")
			}
		})
	}
}

// TestInteropLegacy: by a handle of legacy IPC, with memory of cuMemAlloc, and of CuPy and
// PyTorch, whose arrays lie somewhere in larger allocations; opened by the package, by
// CuPy's runtime API, and under a tensor of PyTorch.
func TestInteropLegacy(t *testing.T) {
	programs.Parallel(t)
	programs.SkipOnSoft(t, "a legacy handle of the software driver is for its own processes")
	all := slices.Clone(pairs)
	for _, library := range args("cupy", "torch") {
		all = append(all, pair{goProducer, pyConsumer.with(library)}, pair{pyProducer.with(library), goConsumer},
			pair{pyProducer.with(library), pyConsumer}, pair{pyProducer.with(library), cConsumer}, pair{pyProducer.with(library), pyConsumer.with(library)})
	}
	eachPair(t, all, func(t *testing.T, p pair) {
		library := len(p.producer.flags)+len(p.consumer.flags) > 0 // it takes seconds to begin
		sizes := []uint64{10*programs.MiB + 1}
		if library {
			p.provenUnlessOurs(t)
			sizes = []uint64{130 * programs.MiB}
		}
		if cutest.All() {
			sizes = []uint64{1, 4*programs.KiB + 3, 10*programs.MiB + 1, 130 * programs.MiB}
		}
		for _, size := range sizes {
			passOn(t, p, "-handle", "legacy", "-size", programs.Decimal(size), "-salt", "77")
		}
		if (library || !p.ours()) && !cutest.All() {
			return
		}
		s := programs.Meeting(t)
		producer := servingPeer(s, p.producer, "-handle", "legacy", "-salt", "7")
		startPeer(s, p.consumer, "-expect-salt", "8").Fails(1, "first at index 0")
		producer.Fails(1, "the consumer reports", "first at index 0")
	})
}

// TestInteropLegacyKilled: whoever dies, the other ends clearly.
func TestInteropLegacyKilled(t *testing.T) {
	programs.Parallel(t)
	programs.SkipOnSoft(t, "a legacy handle of the software driver is for its own processes")
	eachPair(t, withOurs, func(t *testing.T, p pair) {
		s := programs.Meeting(t)
		producer := servingPeer(s, p.producer, "-handle", "legacy")
		producer.Stop()
		consumer := startPeer(s, p.consumer)
		consumer.WaitLine("Connected to producer")
		s.Kill(producer)
		consumer.Fails(4)

		producer = servingPeer(s, p.producer, "-handle", "legacy", "-consumers", "2")
		consumer = startPeer(s.Relayed(t, nil, programs.Drop(programs.TypeVerdict)), p.consumer)
		consumer.WaitLine("Received")
		consumer.Kill()
		startPeer(s, p.consumer).Succeeds()
		require.Equal(t, 4, producer.Wait(), producer.Dump())
	})
}

// TestInteropLegacySoftware: a program without the software driver cannot open what
// stands for a legacy handle there, and does not say that it takes one.
func TestInteropLegacySoftware(t *testing.T) {
	programs.Parallel(t)
	if cutest.Kind() != cu.Soft {
		t.Skip("the software driver's own")
	}
	for _, c := range []peer{pyConsumer, cConsumer} {
		t.Run(c.String(), func(t *testing.T) {
			programs.Parallel(t)
			c.command(t)
			s := programs.Meeting(t)
			producer := s.Serving("-handle", "legacy")
			startPeer(s, c).Fails(1, "refused", "(code 10)")
			s.Consumer().Succeeds()
			producer.Succeeds()
		})
	}
	pyProducer.command(t)
	startPeer(programs.Meeting(t), pyProducer, "-handle", "legacy").Fails(3, "the software driver's legacy handles are for its own processes")
	startPeer(programs.Meeting(t), pyProducer, "-handle", "legacy", "-chunk", "2MiB").Fails(2, "--chunk")
}

// TestInteropReadWrite: a consumer of another language that asks for it maps the memory
// read-write, and is refused where the offer does not give that.
func TestInteropReadWrite(t *testing.T) {
	programs.Parallel(t)
	eachPair(t, withOurs, func(t *testing.T, p pair) {
		s := programs.Meeting(t)
		producer := servingPeer(s, p.producer, "-access", "rw")
		startPeer(s, p.consumer, "-access", "rw").Succeeds()
		producer.Succeeds()

		producer = servingPeer(s, p.producer)
		startPeer(s, p.consumer, "-access", "rw").Fails(1, "read-only")
		startPeer(s, p.consumer).Succeeds()
		producer.Succeeds()
	})
}

// TestInteropWrongData defends invariant 6 in other languages: both sides fail, and name
// the integer.
func TestInteropWrongData(t *testing.T) {
	programs.Parallel(t)
	eachPair(t, withOurs, func(t *testing.T, p pair) {
		s := programs.Meeting(t)
		producer := servingPeer(s, p.producer, "-size", "1030", "-salt", "7")
		startPeer(s, p.consumer, "-expect-salt", "8").Fails(1, "first at index 0, want 0xdeadbbde, got 0xdeadbbd1; 258 integers are wrong")
		producer.Fails(1, "the consumer reports", "first at index 0, want 0xdeadbbde, got 0xdeadbbd1; 258 integers are wrong")
	})
}

// TestInteropFlippedBit: one bit anywhere.
func TestInteropFlippedBit(t *testing.T) {
	programs.Parallel(t)
	for _, consumer := range []peer{pyConsumer, cConsumer} {
		t.Run(consumer.String(), func(t *testing.T) {
			programs.Parallel(t)
			consumer.command(t)
			s := programs.Meeting(t)
			producer := s.Flipped(4*programs.MiB+1, 2*programs.MiB, 4*programs.MiB-1, 7)
			startPeer(s, consumer).Fails(1, "first at index 1048575, want 0x", "; 1 integer is wrong")
			producer.Fails(1, "first at index 1048575")
		})
	}
}

// TestInteropProducerKilled: the consumer ends, exit 4, and whoever comes next takes the
// socket over, whatever the language of the one that died.
func TestInteropProducerKilled(t *testing.T) {
	programs.Parallel(t)
	eachPair(t, withOurs, func(t *testing.T, p pair) {
		s := programs.Meeting(t)
		producer := servingPeer(s, p.producer)
		producer.Stop()
		consumer := startPeer(s, p.consumer)
		consumer.WaitLine("Connected to producer")
		s.Kill(producer)
		consumer.Fails(4)
		s.Kill(servingPeer(s, p.producer))
		s.Reclaimed()
	})
}

// TestInteropConsumerKilled: the producer knows at once, and serves the next.
func TestInteropConsumerKilled(t *testing.T) {
	programs.Parallel(t)
	eachPair(t, withOurs, func(t *testing.T, p pair) {
		s := programs.Meeting(t)
		producer := servingPeer(s, p.producer, "-consumers", "2")
		consumer := startPeer(s.Relayed(t, nil, programs.Drop(programs.TypeVerdict)), p.consumer)
		consumer.WaitLine("Received")
		consumer.Kill()
		startPeer(s, p.consumer).Succeeds()
		require.Equal(t, 4, producer.Wait(), producer.Dump())
	})
}

// TestInteropRevoked: a producer that is interrupted tells its consumers, and the
// signal is no failure of it.
func TestInteropRevoked(t *testing.T) {
	programs.Parallel(t)
	eachPair(t, withOurs, func(t *testing.T, p pair) {
		s := programs.Meeting(t)
		producer := servingPeer(s, p.producer)
		consumer := startPeer(s.Relayed(t, nil, programs.Drop(programs.TypeVerdict)), p.consumer)
		consumer.WaitLine("Received")
		consumer.Stop()
		producer.Signal(syscall.SIGTERM)
		producer.Wait()
		require.NoError(t, programs.Resume(consumer))
		require.Regexp(t, "withdrawn by the producer|WithdrawnError", consumer.Fails(4))
	})
}

// TestInteropInterrupted: a producer that is interrupted before it serves has failed.
func TestInteropInterrupted(t *testing.T) {
	programs.Parallel(t)
	producer := startPeer(programs.Meeting(t), pyProducer, "-size", "512MiB") // which it fills for seconds
	producer.WaitLine("Made")
	producer.Signal(syscall.SIGTERM)
	producer.Fails(1, "interrupted")
}

// TestInteropNobody: no producer, and no consumer.
func TestInteropNobody(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	for _, c := range []peer{pyConsumer, cConsumer} {
		t.Run(c.String(), func(t *testing.T) {
			programs.Parallel(t)
			startPeer(programs.Meeting(t), c, "-timeout", "300ms").Fails(1, "nobody is listening there")
			startPeer(programs.Meeting(t), c, "-socket", "/"+strings.Repeat("x", 107)).Fails(2, "1 to 107 bytes")
			startPeer(programs.Meeting(t), c, "-nonsense", "1").Fails(2)
			programs.Start(t, c.name, c.command(t)[0], args("GPUFD_DRIVER=nonsense"), c.command(t)[1:]...).Fails(2, "auto, cuda or soft")
		})
	}
	t.Run(pyProducer.String(), func(t *testing.T) {
		programs.Parallel(t)
		startPeer(programs.Meeting(t), pyProducer, "-timeout", "100ms").Fails(4, "no consumer came")
		startPeer(programs.Meeting(t), pyProducer, "-size", "x").Fails(2, "want bytes")
	})
}

// TestInteropConsumerFirst: a consumer waits for its producer, as ours does, and says so.
func TestInteropConsumerFirst(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	for _, p := range []peer{goProducer, pyProducer} {
		t.Run(p.String(), func(t *testing.T) {
			programs.Parallel(t)
			s := programs.Meeting(t)
			consumer := startPeer(s, pyConsumer)
			consumer.WaitLine("  no producer is there yet: waiting for one, for 30 s at most")
			producer := startPeer(s, p)
			consumer.Succeeds()
			producer.Succeeds()
		})
	}
}

// TestInteropOneProducer: a socket has one producer, whatever the languages.
func TestInteropOneProducer(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	eachPair(t, []pair{{goProducer, pyProducer}, {pyProducer, goProducer}, {pyProducer, pyProducer}}, func(t *testing.T, p pair) {
		s := programs.Meeting(t)
		first := servingPeer(s, p.producer)
		startPeer(s, p.consumer).Fails(1, s.Socket)
		s.Consumer().Succeeds()
		first.Succeeds()
	})
}

// TestInteropSilence: who says nothing is given up, in time.
func TestInteropSilence(t *testing.T) {
	programs.Parallel(t)
	cutest.ProvenOnSoft(t)
	eachPair(t, withOurs, func(t *testing.T, p pair) {
		s := programs.Meeting(t)
		producer := servingPeer(s, p.producer, "-consumers", "0")
		producer.Stop()
		startPeer(s, p.consumer, "-timeout", "100ms").Fails(4, "took")
		require.NoError(t, programs.Resume(producer))
		startPeer(s, p.consumer).Succeeds()
		producer.Signal(syscall.SIGTERM)
		require.Contains(t, []int{0, 1, 4}, producer.Wait(), "depends on how much it has heard of the first one, which says that it failed: "+producer.Dump())
	})
}

// TestInteropOtherUser: who is not admitted hears so and gets nothing, and one that is
// not our user's is not listened to.
func TestInteropOtherUser(t *testing.T) {
	programs.Parallel(t)
	other := syscall.SysProcAttr{Credential: &syscall.Credential{Uid: programs.OtherUID, Gid: programs.OtherGID}}
	t.Run("the producer does not admit", func(t *testing.T) {
		programs.Parallel(t)
		s := programs.OpenScene(t)
		producer := servingPeer(s, pyProducer, "-consumers", "0")
		require.NoError(t, os.Chmod(s.Socket, 0o666))
		s.StartAs(other, "consumer", "-allow-uid", programs.Decimal(0)).Fails(1, "does not admit")
		require.Contains(t, producer.WaitLine("  turned a peer away"), "uid 12345 is not admitted")
		producer.Signal(syscall.SIGTERM)
		require.Equal(t, 0, producer.Wait(), producer.Dump())
	})
	for _, c := range []peer{pyConsumer, cConsumer} {
		t.Run(c.String()+" does not admit", func(t *testing.T) {
			programs.Parallel(t)
			c.command(t)
			s := programs.OpenScene(t)
			require.NoError(t, os.Chown(s.Dir, programs.OtherUID, programs.OtherGID))
			producer := s.StartAs(other, "producer", "-allow-uid", programs.Decimal(0), "-consumers", "0")
			producer.WaitLine("Waiting for consumer connection...")
			startPeer(s, c).Fails(1, "uid 12345 is not admitted")
			if cutest.Kind() == cu.Soft {
				startPeer(s, c, "-allow-uid", programs.Decimal(programs.OtherUID)).Succeeds()
			}
			producer.Signal(syscall.SIGTERM)
			producer.Wait()
		})
	}
}

// TestInteropLegacyRaw: programs that know nothing of us but the 64 bytes and an offset.
func TestInteropLegacyRaw(t *testing.T) {
	programs.Parallel(t)
	programs.SkipOnSoft(t, "a legacy handle of the software driver is for its own processes")
	raw := func(t *testing.T, more ...string) *exec.Cmd {
		return exec.Command(programs.Python(t, "cupy"), append(args("-B", filepath.Join(programs.PythonDir, "legacy_raw.py")), more...)...)
	}
	const size, salt = 3*programs.MiB + 2, 77
	data := make([]byte, size)
	pattern.Fill(data, 0, salt)
	programs.Meeting(t)
	ctx := cutest.Context(t, cutest.Device(t))

	t.Run("opens ours", func(t *testing.T) {
		const at = 4096
		mem := ok(ctx.Alloc(at + size))(t)
		defer func() { require.NoError(t, mem.Close()) }()
		require.NoError(t, cu.CopyToDevice(ctx, mem.Ptr().Add(at), data))
		h, offset, err := ctx.IPCHandle(mem.Ptr().Add(at))
		require.NoError(t, err)
		out, err := raw(t, "open", h.String(), programs.Decimal(offset), programs.Decimal(size), "77").CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "PASSED")
		out, err = raw(t, "open", h.String(), programs.Decimal(offset), programs.Decimal(size), "78").CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "first at index 0")
	})
	t.Run("its memory is opened here", func(t *testing.T) {
		p := raw(t, "own", programs.Decimal(size), "77")
		in := ok(p.StdinPipe())(t)
		out := ok(p.StdoutPipe())(t)
		require.NoError(t, p.Start())
		defer func() { require.NoError(t, p.Wait()) }()
		defer in.Close()
		var h, offset string
		require.NoError(t, errOf(fmt.Fscan(out, &h, &offset)))
		var handle cu.IPCHandle
		require.NoError(t, handle.UnmarshalText([]byte(h)))
		mem := ok(ctx.OpenIPC(handle))(t)
		got := make([]byte, size)
		require.NoError(t, cu.CopyToHost(ctx, got, mem.Ptr()))
		require.Equal(t, "0", offset)
		require.True(t, string(data) == string(got))
		require.NoError(t, mem.Close())
	})
}
