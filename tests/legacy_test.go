package tests

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

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
	s := newScene(t)
	producer := s.serving("-handle", "legacy", "-fill", "cpu")
	consumer := s.consumer("-verify", "cpu")
	consumer.succeeds()
	producer.succeeds()
	requireTranscript(t, producer, legacyProducerTranscript)
	requireTranscript(t, consumer, legacyConsumerTranscript)
	require.Len(t, find(producer, "  every consumer can write it"), 1)
	require.Len(t, find(consumer, "  it is read-write here, although read-only was asked for"), 1)
}

// TestLegacy: whatever the size, whoever fills and verifies, and however many come.
func TestLegacy(t *testing.T) {
	for _, size := range []uint64{1, 3, 4*kib + 1, 2 * mib, 10*mib + 1} {
		for _, way := range waysFor(size) {
			t.Run(fmt.Sprintf("%d on the %s", size, way), func(t *testing.T) {
				if size != 10*mib+1 {
					cutest.ProvenOnSoft(t)
				}
				s := newScene(t)
				producer := s.serving("-handle", "legacy", "-size", decimal(size), "-fill", way, "-salt", "0x5EED", "-consumers", "3", "-access", "rw")
				s.consumer("-verify", way, "-access", "rw").succeeds()
				one, two := s.consumer("-json"), s.consumer("-verify", way)
				one.succeeds()
				two.succeeds()
				producer.succeeds()
				last, _ := one.result()
				require.Equal(t, "legacy", last["handle"])
				require.EqualValues(t, size, last["size"])
				require.Equal(t, "legacy", event(t, one, "received")["handle"])
				require.NotRegexp(t, `[0-9a-f]{128}`, one.out.String(), "who can read a log has no right to the memory")
				require.Empty(t, find(two, "Imported"), "nothing comes as a descriptor")
			})
		}
	}
}

// TestLegacyConsumerIsEarly: it waits for memory that is filled still.
func TestLegacyConsumerIsEarly(t *testing.T) {
	s := newScene(t)
	producer := s.producer("-handle", "legacy", "-size", "64MiB", "-fill", "cpu")
	producer.waitLine("Allocated device memory")
	s.consumer().succeeds()
	producer.succeeds()
}

func TestLegacyWrongFlags(t *testing.T) {
	for _, c := range []wrongCase{
		{name: "-handle unknown", args: args("-handle", "fabric"), code: 2, words: args(`"fabric"`, "vmm or legacy")},
		{name: "read-only", args: args("-handle", "legacy", "-access", "ro"), code: 2, words: args("-access ro", "-handle vmm")},
		{name: "chunks", args: args("-handle", "legacy", "-chunk", "2MiB"), code: 2, words: args("-chunk 2MiB", "-handle vmm")},
		{name: "wait", args: args("-handle", "legacy", "-wait", "1s"), code: 2, words: args("-wait 1s", "-handle vmm")},
		{name: "too large", args: args("-handle", "legacy", "-size", "16777215TiB"), code: 1, words: args("is larger than device")},
	} {
		c.run(t, "producer")
	}
}

// TestLegacyIsNotSupported: a device without it is said to be so, exit 3; by drivers that
// do not tell beforehand, when they are asked for a handle.
func TestLegacyIsNotSupported(t *testing.T) {
	if cutest.Kind() != cu.Soft {
		t.Skip("the software driver can be told to have none")
	}
	newScene(t).start("producer", args("GPUFD_SOFT_IPC=0"), "-handle", "legacy").fails(3, "legacy IPC")
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
	none := withoutVMM(t)
	for name, c := range map[string]struct{ producer, consumer []string }{
		"both": {none, none}, "the consumer's": {nil, none}, "the producer's": {none, nil},
	} {
		for _, way := range args("cpu", "gpu") {
			t.Run(name+" on the "+way, func(t *testing.T) {
				s := newScene(t)
				producer := s.start("producer", c.producer, "-handle", "legacy", "-size", "5000", "-fill", way)
				producer.waitLine("Waiting for consumer connection...")
				s.start("consumer", c.consumer, "-verify", way).succeeds()
				producer.succeeds()
			})
		}
	}
}

// TestDescriptorsWithoutVMM: a device that cannot take or make descriptors is said to be
// so, with what to do, exit 3, and the producer that offered them is told.
func TestDescriptorsWithoutVMM(t *testing.T) {
	none := withoutVMM(t)
	const why = "does not support virtual memory management"
	newScene(t).start("producer", none).fails(3, why, "GPUFD_SOFT_VMM=0", "use --handle legacy")
	if cutest.Device(t).Driver().Version() >= 12000 { // older ones cannot be asked for legacy IPC
		neither := append(none, "GPUFD_SOFT_IPC=0")
		line := newScene(t).start("producer", neither).fails(3, why)
		require.NotContains(t, line, "-handle legacy")
		newScene(t).start("consumer", neither).fails(3, why)
	}
	s := newScene(t)
	producer := s.serving("-consumers", "2")
	s.start("consumer", none).fails(3, why, "by a vmm handle, and this side takes [legacy]", "start the producer with --handle legacy")
	s.consumer().succeeds()
	producer.fails(1, "consumer 1 (pid ", "the consumer reports: attaching failed", "this side takes [legacy]")
}

// TestLegacyWrongData defends invariant 6: one bit, flipped by another process, and the
// data of another run.
func TestLegacyWrongData(t *testing.T) {
	for name, c := range map[string]struct {
		size, offset uint64
		bit          int
	}{
		"fault 65: only byte":    {1, 0, 7},
		"fault 65: middle":       {mib, mib/2 + 1, 3},
		"fault 65: last byte":    {3*mib + 2, 3*mib + 1, 2},
		"fault 65: end of 2 MiB": {3*mib + 2, 2*mib - 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s := meeting(t)
			producer := s.flipped(c.size, 0, c.offset, c.bit, "-handle", "legacy")
			s.consumer().fails(1, fmt.Sprintf("index %d", c.offset/4), "want 0x", "; 1 integer is wrong")
			producer.fails(1, fmt.Sprintf("index %d", c.offset/4))
		})
	}
	t.Run("fault 67: another run", func(t *testing.T) {
		s := newScene(t)
		producer := s.serving("-handle", "legacy", "-salt", "7")
		s.consumer("-expect-salt", "8").fails(1, "index 0")
		producer.fails(1, "index 0")
	})
}

// TestFault1to4and9_LegacyProducerDies: killed at each step, or interrupted; the consumer ends, exit 4,
// and the next producer takes over.
func TestFault1to4and9_LegacyProducerDies(t *testing.T) {
	t.Run("fault 1: it sends nothing", func(t *testing.T) {
		s := newScene(t)
		producer := s.serving("-handle", "legacy")
		producer.stop()
		consumer := s.consumer()
		consumer.waitLine("Connected to producer")
		s.kill(producer)
		consumer.fails(4, "the producer closed the connection before its offer was complete", "peer lost")
		s.reclaimed()
	})
	t.Run("fault 2: received", func(t *testing.T) {
		s := meeting(t)
		producer := s.serving("-handle", "legacy")
		_, err := s.attach(share.OnReceived(func(share.Offer, []*os.File) { s.kill(producer) }))
		require.Equal(t, 4, cli.ExitCode(err), err)
		s.reclaimed()
	})
	t.Run("fault 2: opened", func(t *testing.T) {
		s := newScene(t)
		producer := s.serving("-handle", "legacy")
		s.relayed(t, nil, onlyOf(typeMapped, func(*said) { producer.kill() })).consumer().
			fails(4, "before it confirmed that the memory is what it offered", "peer lost")
		s.forsaken()
		s.reclaimed()
	})
	t.Run("fault 3: verifying", func(t *testing.T) {
		s := newScene(t)
		producer := s.serving("-handle", "legacy", "-size", long, "-consumers", "0")
		consumer := s.haltVerifying()
		s.kill(producer)
		require.NoError(t, resume(consumer))
		consumer.fails(4, "peer lost")
		s.reclaimed()
	})
	t.Run("fault 4: filling", func(t *testing.T) {
		s := newScene(t)
		producer := s.producer("-handle", "legacy", "-size", long, "-fill", "cpu")
		producer.waitLine("Allocated device memory")
		producer.stop()
		consumer := s.consumer()
		consumer.waitLine("Connected to producer")
		s.kill(producer)
		consumer.fails(4, "peer lost")
		require.Empty(t, find(consumer, "Received IPC handle"), consumer.dump())
		s.reclaimed()
	})
	t.Run("fault 9: interrupted", func(t *testing.T) {
		s := newScene(t)
		producer := s.serving("-handle", "legacy", "-size", long, "-consumers", "0")
		consumer := s.haltVerifying()
		producer.signal(syscall.SIGTERM)
		producer.waitLine("  waiting for consumers to close the memory (1), for 30s at most")
		require.False(t, producer.ended(), "the memory is open there")
		require.NoError(t, resume(consumer))
		consumer.fails(4, "revoked by the producer")
		require.Empty(t, find(consumer, "Data verification"), "it closes the memory instead")
		producer.succeeds()
	})
}

// TestFault5and6_LegacyConsumerDies: killed when it has the handle, and while it verifies; the
// producer says so and serves the next.
func TestFault5and6_LegacyConsumerDies(t *testing.T) {
	for _, when := range []string{"Received IPC handle", "Opened IPC handle", "  verifying"} {
		t.Run(strings.TrimSpace(when), func(t *testing.T) {
			s := newScene(t)
			producer := s.serving("-handle", "legacy", "-size", long, "-consumers", "2")
			consumer := s.relayed(t, nil, unsaid(typeVerdict)).consumer("-verify", "cpu")
			consumer.waitLine(when)
			consumer.kill()
			producer.waitLine("Lost consumer 1: share: the consumer left without a verdict")
			s.consumer().succeeds()
			producer.fails(4, fmt.Sprintf("consumer 1 (pid %d", os.Getpid()), "left without a verdict")
		})
	}
}

// TestFault9_LegacyProducerInterrupted: the consumer whose memory is taken back is killed, or
// does not come back; its producer frees the memory then, and in the second case says so.
func TestFault9_LegacyProducerInterrupted(t *testing.T) {
	interrupted := func(t *testing.T, flags ...string) (producer, consumer *process) {
		s := newScene(t)
		producer = s.serving(append(args("-handle", "legacy"), flags...)...)
		consumer = s.relayed(t, unsaid(typeConfirm), nil).consumer()
		consumer.waitLine("Opened IPC handle")
		producer.waitLine("  consumer 1 has mapped the memory")
		consumer.stop()
		producer.signal(syscall.SIGTERM)
		producer.waitLine("  waiting for consumers to close the memory (1)")
		return producer, consumer
	}
	t.Run("the consumer is killed", func(t *testing.T) {
		producer, consumer := interrupted(t)
		require.False(t, producer.ended())
		consumer.kill()
		producer.succeeds()
	})
	t.Run("the consumer never closes it", func(t *testing.T) {
		producer, consumer := interrupted(t, "-timeout", enough)
		producer.fails(4, "a consumer may still have the legacy memory open: not closed within "+enough, fmt.Sprintf("pid %d", os.Getpid()))
		require.NoError(t, resume(consumer))
		consumer.fails(4, "revoked by the producer")
	})
}

// TestLegacyLies: whatever is said of the handle, the consumer names it, exit 1.
func TestLegacyLies(t *testing.T) {
	s := newScene(t)
	producer := s.serving("-handle", "legacy", "-consumers", "0")
	s.consumer().succeeds() // what a GPU's driver keeps from the first time on is nobody's leak
	lies := 0
	for name, c := range map[string]struct {
		twist twist
		says  string
	}{
		"fault 29: another handle":        {onlyOf(typeOffer, put(atHandle, make([]byte, 64)...)), "cuIpcOpenMemHandle"},
		"fault 35: size 0":                {onlyOf(typeOffer, changed(atSize, becomes(0))), "0 bytes at 0 of an allocation"},
		"fault 36: larger":                {onlyOf(typeOffer, changed(atSize, becomes(1<<40))), "of an allocation of 2097152"},
		"fault 36: a larger allocation":   {onlyOf(typeOffer, all(changed(atChunkSize, becomes(1<<40)), changed(atSize, becomes(1<<40)))), "allocation size is 1099511627776"},
		"fault 38: offset":                {onlyOf(typeOffer, changed(atOffset, becomes(1<<21))), "at 2097152 of an allocation"},
		"fault 38: offset beyond 64 bits": {onlyOf(typeOffer, changed(atOffset, becomes(1<<64-1))), "of an allocation of 2097152"},
		"fault 39: another device":        {onlyOf(typeOffer, put(atSize-8, 1, 2, 3)), ""},
		"fault 40: unknown handle":        {onlyOf(typeOffer, put(atHandleType, 3)), "handles of type 3"},
		"read-only":                       {onlyOf(typeOffer, put(body+1, 1)), "cannot be read-only"},
		"another generation":              {onlyOf(typeConfirm, changed(body, becomes(5))), "another generation than was offered"},
		"it publishes":                    {onlyOf(typeConfirm, put(atType, 8)), "where a confirmation belongs"},
		"descriptors":                     {onlyOf(typeOffer, sends(os.Stdin)), "1 descriptors instead of 0"},
	} {
		t.Run(name, func(t *testing.T) {
			switch name[:min(len(name), 8)] {
			case "fault 29", "fault 36", "fault 39", "another ":
			default:
				cutest.ProvenOnSoft(t)
			}
			consumer := s.relayed(t, c.twist, nil).consumer()
			if strings.HasSuffix(name, "another device") { // which may be hidden here: the handle decides
				consumer.succeeds()
				return
			}
			lies++
			consumer.fails(1, c.says)
		})
	}
	producer.signal(syscall.SIGTERM)
	require.Equal(t, min(lies, 1), min(producer.wait(), 1), "it was told of %d lies: %s", lies, producer.dump())
}

// TestFault39_LegacyMemoryOfAnotherDevice: both are visible, and the offer names the one
// that the memory is not on. The handle decides, as for a device that is hidden.
//
//fault:skip takes two devices
func TestFault39_LegacyMemoryOfAnotherDevice(t *testing.T) {
	a, b := uuids(t)
	s := newScene(t)
	producer := s.serving("-handle", "legacy", "-device", b, "-consumers", "0")
	named, err := cu.ParseUUID(a)
	require.NoError(t, err)
	s.relayed(t, onlyOf(typeOffer, put(atDevice, named[:]...)), nil).consumer().succeeds()
	s.consumer("-device", b).succeeds()
	producer.signal(syscall.SIGTERM)
	producer.succeeds()
}

// TestFault13_LegacyMemoryOfAnEarlierProducer: its handle, in the offer of the one that
// took its place.
func TestFault13_LegacyMemoryOfAnEarlierProducer(t *testing.T) {
	s := newScene(t)
	first := s.serving("-handle", "legacy")
	old := make(chan []byte, 1)
	s.relayed(t, onlyOf(typeOffer, func(m *said) { old <- bytes.Clone(m.record[atHandle:]) }), nil).consumer().succeeds()
	first.succeeds()
	second := s.serving("-handle", "legacy", "-salt", "3")
	s.relayed(t, onlyOf(typeOffer, put(atHandle, <-old...)), nil).consumer().fails(1, "cuIpcOpenMemHandle")
	require.NotZero(t, second.wait(), second.dump())
}

// TestFault46_LegacyNamespaces: as with descriptors, but for two that have one number,
// each in its own.
//
//fault:skip lets us have no namespaces
func TestFault46_LegacyNamespaces(t *testing.T) {
	in := cutest.Namespaced(t)
	second := append(in[:len(in):len(in)], "sh", "-c", `"$0" "$@"; exit $?`)
	t.Run("process 1 of each", func(t *testing.T) {
		s := newScene(t)
		producer := s.wrapped(in, nil, "producer", "-handle", "legacy", "-size", "5MiB")
		producer.waitLine("Waiting for consumer connection...")
		s.wrapped(in, nil, "consumer").fails(1, "CUDA_ERROR_INVALID_CONTEXT", "the same process number in another PID namespace")
		producer.fails(1, "the consumer reports", "the same process number in another PID namespace")
	})
	for name, c := range map[string]struct{ producer, consumer []string }{
		"both": {in, second}, "producer": {in, nil}, "consumer": {nil, in},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			producer := s.wrapped(c.producer, nil, "producer", "-handle", "legacy", "-size", "5MiB")
			producer.waitLine("Waiting for consumer connection...")
			s.wrapped(c.consumer, nil, "consumer").succeeds()
			producer.succeeds()
		})
	}
}

// TestLegacyHiddenDevice: the device of the memory is hidden from the consumer, which
// opens it on another.
func TestLegacyHiddenDevice(t *testing.T) {
	a, b := uuids(t)
	s := newScene(t)
	producer := s.start("producer", visible(a), "-handle", "legacy", "-consumers", "4")
	producer.waitLine("Waiting for consumer connection...")
	s.start("consumer", visible(b)).succeeds()
	s.start("consumer", visible(b+","+a)).succeeds()
	s.start("consumer", visible(b+","+a), "-device", b).fails(1, "memory of another device", a)
	s.start("consumer", visible(a)).succeeds()
	require.Equal(t, 1, producer.wait(), producer.dump())
}
