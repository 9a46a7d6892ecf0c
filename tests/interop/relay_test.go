package interop

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A lie is what the relay makes of an offer, and what the consumer says to that.
type lie struct {
	name string
	f    programs.Edit
	says string
}

// liesWithFiles are about descriptors. files are opened for them.
func liesWithFiles(t *testing.T) (lies []lie) {
	t.Helper()
	dev := cutest.Device(t)
	for name, size := range map[string]uint64{"fault 26: an allocation of another size": 2 * programs.MiB, "fault 26: an allocation of the same size": 4 * programs.MiB} {
		buf := ok(vmm.New(dev, size))(t)
		_, files, err := buf.Export()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, sock.CloseFiles(files)); require.NoError(t, buf.Close()) })
		says := "chunk size is not the size of the memory that came"
		if size == 4*programs.MiB {
			says = "integers are wrong" // D9: it holds zeros, and only who looks can tell
		}
		lies = append(lies, lie{name, programs.Sends(files...), says})
	}
	for name, f := range foreignFiles(t) {
		lies = append(lies, lie{"fault 25: " + name, programs.Sends(f), "importing chunk 1 of 1"})
	}
	return lies
}

// holes is what the software driver's memory looks like, but none of it is there. The
// caller closes it.
func holes(t *testing.T) *os.File {
	t.Helper()
	const size = 4 * programs.MiB
	buf := ok(vmm.New(cutest.Device(t), size))(t)
	_, files, err := buf.Export()
	require.NoError(t, err)
	trailer := make([]byte, 4096)
	require.NoError(t, errOf(files[0].ReadAt(trailer, int64(size))))
	require.NoError(t, sock.CloseFiles(files))
	require.NoError(t, buf.Close())
	fd := ok(unix.MemfdCreate("holes", unix.MFD_CLOEXEC))(t)
	f := os.NewFile(uintptr(fd), "holes")
	require.NoError(t, errOf(f.WriteAt(trailer, int64(size))))
	return f
}

// foreignFiles are descriptors that stand for no device memory.
func foreignFiles(t *testing.T) map[string]*os.File {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	pair := ok(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	memfd := ok(unix.MemfdCreate("test", unix.MFD_CLOEXEC))(t)
	require.NoError(t, unix.Ftruncate(memfd, int64(4*programs.MiB)))
	file := ok(os.CreateTemp(t.TempDir(), ""))(t)
	dir := ok(os.Open(t.TempDir()))(t)
	null := ok(os.Open(os.DevNull))(t)
	files := map[string]*os.File{"pipe": r, "memfd": os.NewFile(uintptr(memfd), "memfd"), "file": file, "directory": dir,
		"dev null": null, "socket": os.NewFile(uintptr(pair[0]), "socket")}
	if cutest.Kind() == cu.Soft {
		files["memory of holes"] = holes(t)
	}
	if ctl, err := os.OpenFile("/dev/nvidiactl", os.O_RDWR, 0); err == nil {
		files["dev nvidiactl"] = ctl
	}
	t.Cleanup(func() {
		for _, f := range files {
			require.NoError(t, f.Close())
		}
		require.NoError(t, w.Close())
		require.NoError(t, unix.Close(pair[1]))
	})
	return files
}

// lies about an offer of one chunk of 4 MiB that holds 3 MiB.
var lies = []lie{
	{"fault 19: no descriptor", programs.Sends(), "0 descriptors"},
	{"fault 20: two descriptors", func(m *programs.Message) { m.Files = []*os.File{m.Files[0], m.Files[0]} }, "2 descriptors"},
	{"fault 21: 64 descriptors", func(m *programs.Message) { m.Files = slices.Repeat(m.Files[:1], sock.MaxFDs) }, "64 descriptors"},
	{"fault 27: wrong magic", programs.Put(0, 'X'), "does not begin with"},
	{"fault 27: older version", programs.Put(programs.AtVersion, 0), "the peer speaks 0, this program 1"},
	{"fault 27: newer version", programs.Put(programs.AtVersion, 2), "the peer speaks 2, this program 1"},
	{"fault 27: unknown type", programs.Put(programs.AtType, 99), "type 99"},
	{"fault 27: unknown flags", programs.Put(programs.AtFlags, 0, 0, 1), "flags"},
	{"fault 28: length 0", programs.Put(programs.AtLength, 0, 0, 0, 0), "0 bytes follow"},
	{"fault 28: length 2^31", programs.Put(programs.AtLength, 0, 0, 0, 0x80), "2147483648 bytes follow"},
	{"fault 28: length 2^32-1", programs.Put(programs.AtLength, 0xff, 0xff, 0xff, 0xff), "4294967295 bytes follow"},
	{"fault 28: size 2^63", programs.Changed(programs.AtSize, programs.Becomes(1<<63)), "size is 9223372036854775808"},
	{"fault 29: random bytes", func(m *programs.Message) { m.Record = bytes.Repeat([]byte{0x5e, 0xed, 0xf0, 0x0d}, 25) }, "does not begin with"},
	{"fault 35: size 0", programs.Changed(programs.AtSize, programs.Becomes(0)), "size is 0"},
	{"fault 36: larger", programs.All(programs.Changed(programs.AtChunkSize, twice), programs.Changed(programs.AtSize, twice)), "chunk size is not the size of the memory that came"},
	{"fault 36: smaller", programs.All(programs.Changed(programs.AtChunkSize, half), programs.Changed(programs.AtSize, half)), "chunk size is not the size of the memory that came"},
	{"fault 36: more than its chunk", programs.Changed(programs.AtSize, programs.Becomes(4*programs.MiB+1)), "size is 4194305"},
	{"fault 37: no multiple of the granularity", programs.Changed(programs.AtChunkSize, func(n uint64) uint64 { return n + 4096 }), "no multiple of the granularity"},
	{"fault 37: granularity 0", programs.Changed(programs.AtGranularity, programs.Becomes(0)), "granularity is 0"},
	{"fault 38: two chunks of 2^63", programs.All(twoChunks, programs.Changed(programs.AtChunkSize, programs.Becomes(1<<63))), "more than 64 bits hold"},
	{"fault 38: a chunk of 2^64 less a granule", programs.Changed(programs.AtChunkSize, programs.Becomes(1<<64-2<<20)), "reserving 18446744073707454464 bytes"},
	{"fault 39: a device that is not here", func(m *programs.Message) { m.Record[programs.AtDevice+3] ^= 0x55 }, "not visible to this process"},
	{"fault 40: a fabric handle", programs.Put(programs.AtHandleType, 8), "handles of type 8"},
}

// provenUnlessOfTheDriver skips t on a GPU if the lie is refused before the driver is asked.
func (l lie) provenUnlessOfTheDriver(t *testing.T) {
	t.Helper()
	for _, row := range args("25", "26", "36", "39") {
		if strings.HasPrefix(l.name, "fault "+row) {
			return
		}
	}
	cutest.ProvenOnSoft(t)
}

// twoChunks has an offer claim a second chunk, which is the first once more.
func twoChunks(m *programs.Message) {
	m.Record[programs.AtChunks], m.Record[programs.AtFDs] = 2, 2
	m.Files = slices.Repeat(m.Files[:1], 2)
}

func twice(n uint64) uint64 { return 2 * n }

func half(n uint64) uint64 { return n / 2 }

// TestLiesInTheMiddle: whatever an offer claims and whatever comes with it, the programs say
// what is wrong and exit 1, nothing of it stays, and the producer serves the next.
func TestLiesInTheMiddle(t *testing.T) {
	programs.Parallel(t)
	for _, consumer := range []peer{goConsumer, pyConsumer, cConsumer} {
		t.Run(consumer.String(), func(t *testing.T) {
			programs.Parallel(t)
			consumer.command(t)
			s := programs.Meeting(t)
			producer := s.Serving("-consumers", "0", "-size", "3MiB", "-chunk", "4MiB")
			startPeer(s, consumer).Succeeds() // what a GPU's driver keeps from the first time on is nobody's leak
			for _, c := range append(liesWithFiles(t), lies...) {
				t.Run(c.name, func(t *testing.T) {
					programs.Parallel(t)
					c.provenUnlessOfTheDriver(t)
					says := []string{c.says}
					if consumer.name != goConsumer.name {
						says = nil // others have words of their own
						if strings.HasPrefix(c.name, "fault 25") && !strings.Contains(c.name, "pipe") {
							cutest.ProvenOnSoft(t)
						}
					}
					startPeer(s.Relayed(t, programs.OnlyOf(programs.TypeOffer, c.f), nil), consumer).Fails(1, says...)
				})
			}
			t.Cleanup(func() { // when the lies are over
				startPeer(s, consumer).Succeeds()
				producer.Signal(syscall.SIGTERM)
				require.NotZero(t, producer.Wait(), producer.Dump())
			})
		})
	}
}

// The same on the way to the producer: it turns the peer away, who hears why.
func TestLiesToTheProducer(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	producer := s.Serving("-consumers", "0")
	s.Consumer().Succeeds() // as above
	for _, c := range []lie{
		{"fault 25: a descriptor that nobody asked for", func(m *programs.Message) {
			null := ok(os.Open(os.DevNull))(t)
			t.Cleanup(func() { require.NoError(t, null.Close()) })
			m.Files = []*os.File{null}
		}, "refused"},
		{"fault 27: older version", programs.Put(programs.AtVersion, 0), "version"},
		{"fault 27: newer version", programs.Put(programs.AtVersion, 2), "version"},
		{"fault 27: unknown type", programs.Put(programs.AtType, 99), "refused"},
		{"fault 28: length 2^32-1", programs.Put(programs.AtLength, 0xff, 0xff, 0xff, 0xff), "refused"},
		{"fault 29: random bytes", func(m *programs.Message) { m.Record = bytes.Repeat([]byte{0x5e, 0xed}, 40) }, "refused"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.provenUnlessOfTheDriver(t)
			r := s.Relayed(t, nil, programs.OnlyOf(programs.TypeAttach, c.f))
			code := 1
			if strings.HasPrefix(c.name, "fault 25:") && kernelRefusesDescriptors(t) {
				code, c.says = 4, "closed the connection" // the relay could not send it
			}
			r.Consumer().Fails(code, c.says)
			s.Consumer().Succeeds()
		})
	}
	producer.Signal(syscall.SIGTERM)
	producer.Succeeds()
}

// kernelRefusesDescriptors reports whether the kernel keeps descriptors from who takes none
// (SO_PASSRIGHTS, Linux 6.16).
func kernelRefusesDescriptors(t *testing.T) bool {
	t.Helper()
	fd := ok(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, soPassRights, 0) == nil && !cutest.Emulated()
}
