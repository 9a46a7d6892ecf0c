package handoff

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
)

// The transcript of the programs that share memory by a legacy handle.
var (
	legacyProducerTranscript = []string{
		`=== CUDA IPC Producer ===`,
		`Using CUDA device 0: .+`,
		`IPC support: yes`,
		`Buffer size: 1048576 bytes, aligned size: 2097152 bytes`,
		`Allocated device memory at 0x[1-9a-f][0-9a-f]*`,
		`Generated 262144 test integers`,
		`Copied test data to GPU`,
		`Waiting for consumer connection\.\.\.`,
		`Consumer connected`,
		`Sent IPC handle and size metadata to consumer`,
		`Consumer verified data successfully!`,
		`Cleanup complete`,
	}
	legacyConsumerTranscript = []string{
		`=== CUDA VMM Consumer ===`,
		`Using CUDA device 0: .+`,
		`Connecting to producer\.\.\.`,
		`Connected to producer`,
		`Received IPC handle: 64 bytes, size: 1048576 bytes`,
		`Opened IPC handle at 0x[1-9a-f][0-9a-f]*`,
		`Copied 1048576 bytes from GPU to host`,
		`Data verification PASSED \(262144 integers verified\)`,
		`Sent acknowledgment to producer`,
		`Cleanup complete`,
	}
)

func TestLegacyTranscript(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t, "-handle", "legacy", "-fill", "cpu")
	consumer := s.Consumer("-verify", "cpu")
	consumer.Succeeds()
	producer.Succeeds()
	requireTranscript(t, producer, legacyProducerTranscript)
	requireTranscript(t, consumer, legacyConsumerTranscript)
	require.Len(t, programs.Find(producer, "  every consumer can write it"), 1)
	require.Len(t, programs.Find(consumer, "  it is read-write here, although read-only was asked for"), 1)
}

// TestLegacy: whatever the size, whoever fills and verifies, and however many come.
func TestLegacy(t *testing.T) {
	programs.Parallel(t)
	for _, size := range []uint64{1, 3, 4*programs.KiB + 1, 2 * programs.MiB, 10*programs.MiB + 1} {
		for _, way := range waysFor(size) {
			t.Run(fmt.Sprintf("%d on the %s", size, way), func(t *testing.T) {
				programs.Parallel(t)
				if size != 10*programs.MiB+1 {
					cutest.ProvenOnSoft(t)
				}
				s, producer := serving(t, "-handle", "legacy", "-size", programs.Decimal(size), "-fill", way, "-salt", "0x5EED", "-consumers", "3", "-access", "rw")
				s.Consumer("-verify", way, "-access", "rw").Succeeds()
				one, two := s.Consumer("-json"), s.Consumer("-verify", way)
				one.Succeeds()
				two.Succeeds()
				producer.Succeeds()
				last, _ := one.Result()
				require.Equal(t, "legacy", last["handle"])
				require.EqualValues(t, size, last["size"])
				require.Equal(t, "legacy", programs.Event(t, one, "received")["handle"])
				require.NotRegexp(t, `[0-9a-f]{128}`, one.Out.String(), "who can read a log has no right to the memory")
				require.Empty(t, programs.Find(two, "Imported"), "nothing comes as a descriptor")
			})
		}
	}
}

// TestLegacyConsumerIsEarly: it waits for memory that is filled still.
func TestLegacyConsumerIsEarly(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	producer := s.Producer("-handle", "legacy", "-size", "64MiB", "-fill", "cpu")
	producer.WaitLine("Allocated device memory")
	s.Consumer().Succeeds()
	producer.Succeeds()
}

func TestLegacyWrongFlags(t *testing.T) {
	programs.Parallel(t)
	for _, c := range []programs.WrongCase{
		{Name: "-handle unknown", Args: args("-handle", "fabric"), Code: 2, Words: args(`"fabric"`, "vmm or legacy")},
		{Name: "read-only", Args: args("-handle", "legacy", "-access", "ro"), Code: 2, Words: args("-access ro", "-handle vmm")},
		{Name: "chunks", Args: args("-handle", "legacy", "-chunk", "2MiB"), Code: 2, Words: args("-chunk 2MiB", "-handle vmm")},
		{Name: "wait", Args: args("-handle", "legacy", "-wait", "1s"), Code: 2, Words: args("-wait 1s", "-handle vmm")},
		{Name: "too large", Args: args("-handle", "legacy", "-size", "16777215TiB"), Code: 1, Words: args("is larger than device")},
	} {
		c.Run(t, "producer")
	}
}

// TestLegacyIsNotSupported: a device without it is said to be so, exit 3; by drivers that
// do not tell beforehand, when they are asked for a handle.
func TestLegacyIsNotSupported(t *testing.T) {
	programs.Parallel(t)
	if cutest.Kind() != cu.Soft {
		t.Skip("the software driver can be told to have none")
	}
	programs.NewScene(t).Start("producer", args("GPUFD_SOFT_IPC=0"), "-handle", "legacy").Fails(3, "legacy IPC")
}

// withoutVMM is a device of the software driver without virtual memory management.
func withoutVMM(t *testing.T) []string {
	t.Helper()
	if cutest.Kind() != cu.Soft {
		t.Skip("the software driver can be told to have none")
	}
	return args("GPUFD_SOFT_VMM=0")
}

// TestLegacyWithoutVMM: on devices that have no virtual memory management legacy memory
// goes from producer to consumer, on either side or on both; from the GPU's kernels, too.
func TestLegacyWithoutVMM(t *testing.T) {
	programs.Parallel(t)
	none := withoutVMM(t)
	for name, c := range map[string]struct{ producer, consumer []string }{
		"both": {none, none}, "the consumer's": {nil, none}, "the producer's": {none, nil},
	} {
		for _, way := range args("cpu", "gpu") {
			t.Run(name+" on the "+way, func(t *testing.T) {
				s := programs.NewScene(t)
				producer := s.Start("producer", c.producer, "-handle", "legacy", "-size", "5000", "-fill", way)
				producer.WaitLine("Waiting for consumer connection...")
				s.Start("consumer", c.consumer, "-verify", way).Succeeds()
				producer.Succeeds()
			})
		}
	}
}

// TestDescriptorsWithoutVMM: a device that cannot take or make descriptors is said to be
// so, with what to do, exit 3, and the producer that offered them is told.
func TestDescriptorsWithoutVMM(t *testing.T) {
	programs.Parallel(t)
	none := withoutVMM(t)
	const why = "does not support virtual memory management"
	programs.NewScene(t).Start("producer", none).Fails(3, why, "GPUFD_SOFT_VMM=0", "use --handle legacy")
	if cutest.Device(t).Driver().Version() >= 12000 { // older ones cannot be asked for legacy IPC
		neither := append(none, "GPUFD_SOFT_IPC=0")
		line := programs.NewScene(t).Start("producer", neither).Fails(3, why)
		require.NotContains(t, line, "-handle legacy")
		programs.NewScene(t).Start("consumer", neither).Fails(3, why)
	}
	s, producer := serving(t, "-consumers", "2")
	s.Start("consumer", none).Fails(3, why, "is offered by descriptors, and this side takes legacy memory alone", "start the producer with --handle legacy")
	s.Consumer().Succeeds()
	producer.Fails(1, "consumer 1 (pid ", "the consumer reports: attaching failed", "this side takes legacy memory alone")
}

// TestLegacyWrongData defends invariant 6: one bit, flipped by another process, and the
// data of another run.
func TestLegacyWrongData(t *testing.T) {
	programs.Parallel(t)
	for name, c := range map[string]struct {
		size, offset uint64
		bit          int
	}{
		"fault 65: only byte":    {1, 0, 7},
		"fault 65: middle":       {programs.MiB, programs.MiB/2 + 1, 3},
		"fault 65: last byte":    {3*programs.MiB + 2, 3*programs.MiB + 1, 2},
		"fault 65: end of 2 MiB": {3*programs.MiB + 2, 2*programs.MiB - 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			s := programs.Meeting(t)
			producer := s.Flipped(c.size, 0, c.offset, c.bit, "-handle", "legacy")
			s.Consumer().Fails(1, fmt.Sprintf("index %d", c.offset/4), "want 0x", "; 1 integer is wrong")
			producer.Fails(1, fmt.Sprintf("index %d", c.offset/4))
		})
	}
	t.Run("fault 67: another run", func(t *testing.T) {
		programs.Parallel(t)
		s, producer := serving(t, "-handle", "legacy", "-salt", "7")
		s.Consumer("-expect-salt", "8").Fails(1, "index 0")
		producer.Fails(1, "index 0")
	})
}

// TestFault2and9_LegacyProducerDies: killed when it has sent the handle, or interrupted; the
// consumer ends, exit 4, and the next producer takes over.
func TestFault2and9_LegacyProducerDies(t *testing.T) {
	programs.Parallel(t)
	t.Run("fault 2: received", func(t *testing.T) {
		programs.Parallel(t)
		s := programs.Meeting(t)
		producer := s.Serving("-handle", "legacy")
		_, err := s.Attach(share.AttachOptions{OnReceived: func(share.OfferInfo, []*os.File) { s.Kill(producer) }})
		require.Equal(t, 4, cli.ExitCode(err), err)
		s.Reclaimed()
	})
	t.Run("fault 2: opened", func(t *testing.T) {
		programs.Parallel(t)
		s, producer := serving(t, "-handle", "legacy")
		s.Relayed(t, nil, programs.OnlyOf(programs.TypeMapped, func(*programs.Message) { producer.Kill() })).Consumer().
			Fails(4, "before it confirmed that the memory is what it offered", "peer lost")
		s.Forsaken()
		s.Reclaimed()
	})
	t.Run("fault 9: interrupted", func(t *testing.T) {
		programs.Parallel(t)
		s, producer := serving(t, "-handle", "legacy", "-size", programs.Long, "-consumers", "0")
		consumer := haltVerifying(s)
		producer.Signal(syscall.SIGTERM)
		producer.WaitLine("  waiting for consumers to close the memory (1), for 30s at most")
		require.False(t, producer.Ended(), "the memory is open there")
		require.NoError(t, programs.Resume(consumer))
		consumer.Fails(4, "withdrawn by the producer")
		require.Empty(t, programs.Find(consumer, "Data verification"), "it closes the memory instead")
		producer.Succeeds()
	})
}

// TestFault5and6_LegacyConsumerDies: killed when it has the handle, and while it verifies; the
// producer says so and serves the next.
func TestFault5and6_LegacyConsumerDies(t *testing.T) {
	programs.Parallel(t)
	for _, when := range []string{"Received IPC handle", "Opened IPC handle", "  verifying"} {
		t.Run(strings.TrimSpace(when), func(t *testing.T) {
			programs.Parallel(t)
			s, producer := serving(t, "-handle", "legacy", "-size", programs.Long, "-consumers", "2")
			consumer := s.Relayed(t, nil, programs.Drop(programs.TypeVerdict)).Consumer("-verify", "cpu")
			consumer.WaitLine(when)
			consumer.Kill()
			producer.WaitLine("Lost consumer 1: share: the consumer left without a verdict")
			s.Consumer().Succeeds()
			producer.Fails(4, fmt.Sprintf("consumer 1 (pid %d", os.Getpid()), "left without a verdict")
		})
	}
}

// TestFault9_LegacyProducerInterrupted: the consumer whose memory is taken back is killed, or
// does not come back; its producer frees the memory then, and in the second case says so.
func TestFault9_LegacyProducerInterrupted(t *testing.T) {
	programs.Parallel(t)
	interrupted := func(t *testing.T, flags ...string) (producer, consumer *programs.Process) {
		s := programs.NewScene(t)
		producer = s.Serving(append(args("-handle", "legacy"), flags...)...)
		consumer = s.Relayed(t, programs.Drop(programs.TypeConfirm), nil).Consumer()
		producer.WaitLine("  consumer 1 has mapped the memory")
		consumer.Stop()
		producer.Signal(syscall.SIGTERM)
		producer.WaitLine("  waiting for consumers to close the memory (1)")
		return producer, consumer
	}
	t.Run("the consumer is killed", func(t *testing.T) {
		programs.Parallel(t)
		producer, consumer := interrupted(t)
		require.False(t, producer.Ended())
		consumer.Kill()
		producer.Succeeds()
	})
	t.Run("the consumer never closes it", func(t *testing.T) {
		programs.Parallel(t)
		producer, consumer := interrupted(t, "-timeout", programs.Enough)
		producer.Fails(4, "a consumer may still have the legacy memory open: not closed within "+programs.Enough, fmt.Sprintf("pid %d", os.Getpid()))
		require.NoError(t, programs.Resume(consumer))
		consumer.Fails(4, "withdrawn by the producer")
	})
}

// TestFault39_LegacyMemoryOfAnotherDevice: both are visible, and the offer names the one
// that the memory is not on. The handle decides, as for a device that is hidden.
func TestFault39_LegacyMemoryOfAnotherDevice(t *testing.T) {
	programs.Parallel(t)
	a, b := programs.TwoUUIDs(t)
	s, producer := serving(t, "-handle", "legacy", "-device", b, "-consumers", "0")
	named := ok(cu.ParseUUID(a))(t)
	s.Relayed(t, programs.OnlyOf(programs.TypeOffer, programs.Put(programs.AtDevice, named[:]...)), nil).Consumer().Succeeds()
	s.Consumer("-device", b).Succeeds()
	endsInOrder(producer)
}

// TestFault46_LegacyNamespaces: as with descriptors, but for two that have one number,
// each in its own.
func TestFault46_LegacyNamespaces(t *testing.T) {
	programs.Parallel(t)
	in := cutest.Namespaced(t)
	second := append(in[:len(in):len(in)], "sh", "-c", `"$0" "$@"; exit $?`)
	t.Run("process 1 of each", func(t *testing.T) {
		s := programs.NewScene(t)
		producer := wrapped(s, in, nil, "producer", "-handle", "legacy", "-size", "5MiB")
		producer.WaitLine("Waiting for consumer connection...")
		wrapped(s, in, nil, "consumer").Fails(1, "CUDA_ERROR_INVALID_CONTEXT", "the same process number in another PID namespace")
		producer.Fails(1, "the consumer reports", "the same process number in another PID namespace")
	})
	for name, c := range map[string]struct{ producer, consumer []string }{
		"both": {in, second}, "producer": {in, nil}, "consumer": {nil, in},
	} {
		t.Run(name, func(t *testing.T) {
			s := programs.NewScene(t)
			producer := wrapped(s, c.producer, nil, "producer", "-handle", "legacy", "-size", "5MiB")
			producer.WaitLine("Waiting for consumer connection...")
			wrapped(s, c.consumer, nil, "consumer").Succeeds()
			producer.Succeeds()
		})
	}
}

// TestLegacyHiddenDevice: the device of the memory is hidden from the consumer, which
// opens it on another.
func TestLegacyHiddenDevice(t *testing.T) {
	programs.Parallel(t)
	a, b := programs.TwoUUIDs(t)
	s := programs.NewScene(t)
	producer := s.Start("producer", visible(a), "-handle", "legacy", "-consumers", "4")
	producer.WaitLine("Waiting for consumer connection...")
	s.Start("consumer", visible(b)).Succeeds()
	s.Start("consumer", visible(b+","+a)).Succeeds()
	s.Start("consumer", visible(b+","+a), "-device", b).Fails(1, "memory of another device", a)
	s.Start("consumer", visible(a)).Succeeds()
	require.Equal(t, 1, producer.Wait(), producer.Dump())
}
