package handoff

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
)

// The transcript that the programs are to print, line by line, where the CPU fills
// and verifies.
var (
	producerTranscript = []string{
		`=== CUDA VMM Producer ===`,
		`Using CUDA device 0: .+`,
		`VMM support: yes`,
		`Memory granularity: [1-9]\d* bytes`,
		`Buffer size: 1048576 bytes, aligned size: [1-9]\d* bytes`,
		`Created physical memory allocation`,
		`Reserved virtual address space at 0x[1-9a-f][0-9a-f]*`,
		`Mapped physical memory to virtual address`,
		`Set read/write access permissions`,
		`Generated 262144 test integers`,
		`Copied test data to GPU`,
		`Exported allocation as FD: \d+`,
		`Waiting for consumer connection\.\.\.`,
		`Consumer connected`,
		`Sent FD and size metadata to consumer`,
		`Consumer verified data successfully!`,
		`Cleanup complete`,
	}
	consumerTranscript = []string{
		`=== CUDA VMM Consumer ===`,
		`Using CUDA device 0: .+`,
		`Connecting to producer\.\.\.`,
		`Connected to producer`,
		`Received FD: \d+, size: 1048576 bytes`,
		`Imported allocation handle from FD`,
		`Reserved virtual address space at 0x[1-9a-f][0-9a-f]*`,
		`Mapped imported memory to virtual address`,
		`Set ACCESS access permissions`,
		`Copied 1048576 bytes from GPU to host`,
		`Data verification PASSED \(262144 integers verified\)`,
		`Sent acknowledgment to producer`,
		`Cleanup complete`,
	}
)

func TestTranscript(t *testing.T) {
	programs.Parallel(t)
	for access, words := range map[string]string{"ro": "read-only", "rw": "read/write"} {
		t.Run(access, func(t *testing.T) {
			s, producer := serving(t, "-access", access, "-fill", "cpu")
			consumer := s.Consumer("-access", access, "-verify", "cpu")
			consumer.Succeeds()
			producer.Succeeds()

			requireTranscript(t, producer, producerTranscript)
			want := strings.Split(strings.ReplaceAll(strings.Join(consumerTranscript, "\n"), "ACCESS", words), "\n")
			requireTranscript(t, consumer, want)
		})
	}
}

// TestTranscriptOnGPU: where the GPU fills and verifies, nothing is copied, and
// nothing says so. All else stays.
func TestTranscriptOnGPU(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t, "-fill", "gpu")
	consumer := s.Consumer("-verify", "gpu")
	consumer.Succeeds()
	producer.Succeeds()

	requireTranscript(t, producer, replaced(t, producerTranscript, 2,
		`Generated 262144 test integers`, `Filled 262144 test integers on the GPU`))
	requireTranscript(t, consumer, replaced(t, replaced(t, consumerTranscript, 1,
		`Copied 1048576 bytes from GPU to host`, `Compared 1048576 bytes on the GPU`), 1,
		`Set ACCESS access permissions`, `Set read-only access permissions`))
	require.Len(t, programs.Find(producer, "  filling on the GPU"), 1)
	require.Len(t, programs.Find(consumer, "  verifying on the GPU"), 1)
}

// replaced is lines with n of them, from old on, replaced by another.
func replaced(t *testing.T, lines []string, n int, old, by string) []string {
	t.Helper()
	i := slices.Index(lines, old)
	require.GreaterOrEqual(t, i, 0, old)
	return slices.Replace(slices.Clone(lines), i, i+n, by)
}

// requireTranscript checks that p said what is wanted, in that order, after a
// line about the driver; lines of ours in between are indented.
func requireTranscript(t *testing.T, p *programs.Process, want []string) {
	t.Helper()
	lines := p.Out.All()
	require.NotEmpty(t, lines)
	require.Regexp(t, `^Driver: .+ \(CUDA \d+\.\d\)`, lines[0])
	var said []string
	for _, line := range lines[1:] {
		if !strings.HasPrefix(line, "  ") {
			said = append(said, line)
		}
	}
	require.Len(t, said, len(want), p.Dump())
	for i, pattern := range want {
		require.Regexp(t, regexp.MustCompile("^"+pattern+"$"), said[i], p.Dump())
	}
}

// TestTranscriptNamesPeer: the lines between say who the other side is.
func TestTranscriptNamesPeer(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t)
	consumer := s.Consumer()
	consumer.Succeeds()
	producer.Succeeds()

	peer := regexp.MustCompile(`pid (\d+) uid (\d+) gid \d+`)
	for _, p := range []struct{ says, of *programs.Process }{{producer, consumer}, {consumer, producer}} {
		found := peer.FindStringSubmatch(p.says.Out.String())
		require.Len(t, found, 3, p.says.Dump())
		require.Equal(t, programs.PIDText(p.of), found[1])
		require.Contains(t, p.says.Out.String(), "durations: driver ")
	}
}

// TestLinesAppearAsSoonAsTrue: what a producer has done can be read while it
// waits, and what a consumer has reached while its producer is silent.
func TestLinesAppearAsSoonAsTrue(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t)
	require.Empty(t, programs.Find(producer, "Consumer connected"))
	producer.Stop()
	consumer := s.Consumer()
	consumer.WaitLine("Connected to producer")
	require.Empty(t, programs.Find(consumer, "Received FD"))
	require.False(t, consumer.Ended())
	require.NoError(t, programs.Resume(producer))
	consumer.Succeeds()
	producer.Succeeds()
}
