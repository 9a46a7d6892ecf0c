package corpus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// Seeds of random kernels: from 1 on, and from firstLoose on of those whose sums and
// products say nothing of rounding.
const (
	refusedSeed = 1000 // a module of which no driver takes
	firstLoose  = 641
	lastSeed    = 720
	randomBatch = 40 // kernels of a module
)

// randomStack is how many bytes of stack a thread has. With the 1024 that it has
// otherwise some kernels died of CUDA_ERROR_ILLEGAL_ADDRESS on an H200, all of which
// have functions that call themselves, eight deep: a GPU keeps registers there.
const randomStack = 8192

// A randomRunner runs random kernels in one context.
type randomRunner struct {
	c       *cu.Context
	s       *cu.Stream
	in, out *cu.Memory
}

func newRandomRunner(c *cu.Context, stack uint64) (r *randomRunner, err error) {
	r = &randomRunner{c: c}
	if err := c.SetLimit(cu.LimitStackSize, stack); err != nil {
		return nil, err
	}
	if r.s, err = c.NewStream(); err != nil {
		return nil, err
	}
	if r.in, err = c.Alloc(randomInput); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if r.out, err = c.Alloc(randomBlocks * randomThreads * randomBytes); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if err := cu.CopyToDevice(c, r.s, r.in.Ptr(), kase{kernel: "random", bytes: randomInput}.input()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close gives back what the runner has, but not its context.
func (r *randomRunner) Close() error { return errors.Join(r.out.Close(), r.in.Close(), r.s.Close()) }

// errRefused is of a module that the driver does not take.
var errRefused = errors.New("refused")

// batch runs the kernels of some seeds, which are one module, and gives what each
// has left to each, until one dies.
func (r *randomRunner) batch(first, last int, each func(seed int, out []byte) error) error {
	text := randomHeader
	for seed := first; seed <= last; seed++ {
		text += kernel(seed)
	}
	m, err := r.c.LoadModule([]byte(text))
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	defer m.Close()
	for seed := first; seed <= last; seed++ {
		out, err := r.run(m, seed)
		if err != nil {
			return fmt.Errorf("seed %d: %w", seed, err)
		}
		if err := each(seed, out); err != nil {
			return err
		}
	}
	return nil
}

func (r *randomRunner) run(m *cu.Module, seed int) ([]byte, error) {
	f, err := m.Function(fmt.Sprintf("k%d", seed))
	if err != nil {
		return nil, err
	}
	out := make([]byte, randomBlocks*randomThreads*randomBytes)
	cfg := cu.LaunchConfig{Grid: cu.Dim3{X: randomBlocks}, Block: cu.Dim3{X: randomThreads}}
	if err := f.Launch(r.s, cfg, r.in, r.out); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.s.Synchronize(ctx); err != nil {
		return nil, err
	}
	return out, cu.CopyToHost(r.c, r.s, out, r.out.Ptr())
}

func randomHash(out []byte) string {
	h := sha256.Sum256(out)
	return hex.EncodeToString(h[:8])
}

// randomRecorded reads what an H200 made of the random kernels: nothing of those that
// it could not run, which are comments.
func randomRecorded(t *testing.T) map[int]string {
	text, err := os.ReadFile(filepath.Join(directory(), "random.txt"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	known := map[int]string{}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		seed, err := strconv.Atoi(f[0])
		require.NoError(t, err)
		known[seed] = f[1]
	}
	return known
}

// leastRecorded is how many random kernels have to be equal, once they are recorded.
const leastRecorded = 500

// Random kernels leave what they leave on an H200. With GPUFD_RECORD, a directory,
// what they leave is written there instead.
func TestRandom(t *testing.T) {
	takes(t, randomVersion)
	if dir := os.Getenv("GPUFD_RECORD"); dir != "" {
		recordRandom(t, dir)
		return
	}
	r, err := newRandomRunner(cutest.Context(t, cutest.Device(t)), randomStack)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	known := randomRecorded(t)
	equal, ran := 0, 0
	for first := 1; first <= lastSeed; first += randomBatch {
		require.NoError(t, r.batch(first, min(first+randomBatch-1, lastSeed), func(seed int, out []byte) error {
			ran++
			switch known[seed] {
			case randomHash(out):
				equal++
			case "":
			default:
				t.Errorf("seed %d differs:\n%s", seed, randomHeader+kernel(seed))
			}
			return nil
		}))
	}
	if known == nil {
		t.Skipf("%d random kernels ran, and were compared with nothing: there is no random.txt; "+
			"GPUFD_DRIVER=cuda GPUFD_RECORD=DIRECTORY go test ./tests/corpus -run TestRandom on an H200 makes it", ran)
	}
	require.GreaterOrEqual(t, equal, leastRecorded)
	t.Logf("%d random kernels are equal, of %d", equal, ran)
}

// randomChild runs the kernels of the seeds that GPUFD_SEEDS names, from to and with
// how much stack, and writes a line for each: its hash, or what it died of, which is
// the last line. What each leaves goes into GPUFD_RECORD.
func randomChild() error {
	cutest.ExpectLeaks() // contexts that are lost
	var from, to int
	var stack uint64
	if _, err := fmt.Sscan(os.Getenv("GPUFD_SEEDS"), &from, &to, &stack); err != nil {
		return err
	}
	d, err := cutest.Open()
	if err != nil {
		return err
	}
	dev, err := d.Device(0)
	if err != nil {
		return err
	}
	c, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	r, err := newRandomRunner(c, stack)
	if err != nil {
		return err
	}
	seed := from
	err = r.batch(from, to, func(n int, out []byte) error {
		seed = n + 1
		fmt.Println(n, randomHash(out))
		return os.WriteFile(filepath.Join(os.Getenv("GPUFD_RECORD"), fmt.Sprintf("%d.bin", n)), out, 0o644)
	})
	switch {
	case errors.Is(err, errRefused):
		fmt.Println("refused", result(err))
	case err != nil:
		fmt.Println("#", seed, result(err))
	}
	return nil
}

// A randomRecorder records random kernels, each batch in a process of its own, as one
// that dies takes all contexts of its process along.
type randomRecorder struct {
	dir   string
	stack int // of its kernels' threads
	mu    sync.Mutex
	lines map[int]string // of random.txt, by their seeds
}

// randomPatience is for one process: it may be that a kernel does not end.
const randomPatience = 25 * time.Second

// note takes what became of a seed, and writes down all that is known by now.
func (r *randomRecorder) note(seed int, line string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines[seed] = line
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(r.lines)) {
		b.WriteString(r.lines[n])
	}
	return os.WriteFile(filepath.Join(r.dir, "random.txt"), []byte(b.String()), 0o644)
}

// record records some seeds. One that dies is a line that says so, and the others
// begin anew; of a module that is refused each half is tried.
func (r *randomRecorder) record(ctx context.Context, first, last int) error {
	for first <= last {
		lines := r.child(ctx, first, last)
		for _, line := range lines {
			if strings.HasPrefix(line, "refused") && first < last {
				middle := first + (last-first)/2
				return errors.Join(r.record(ctx, first, middle), r.record(ctx, middle+1, last))
			}
			if strings.HasPrefix(line, "refused") {
				line = fmt.Sprintf("# %d %s", first, line)
			}
			if err := r.note(first, line); err != nil {
				return err
			}
			first++
		}
	}
	return nil
}

// child gives the lines of a process, of which there is at least one.
func (r *randomRecorder) child(ctx context.Context, first, last int) []string {
	ctx, cancel := context.WithTimeout(ctx, randomPatience)
	defer cancel()
	cmd := cutest.Child(ctx, "random", fmt.Sprintf("GPUFD_SEEDS=%d %d %d", first, last, r.stack), "GPUFD_RECORD="+r.dir)
	out, err := cmd.Output()
	lines := slices.Collect(strings.Lines(string(out)))
	if n := len(lines); n == 0 || err != nil && !strings.HasPrefix(lines[n-1], "#") && n <= last-first {
		lines = append(lines, fmt.Sprintf("# %d ended: %v\n", first+n, err))
	}
	return lines
}

// recordRandom writes hashes to random.txt, and what each kernel leaves to a file of
// its own, with several processes at once.
func recordRandom(t *testing.T, dir string) {
	r := &randomRecorder{dir: dir, stack: randomStack, lines: map[int]string{}}
	free := make(chan struct{}, min(6, runtime.NumCPU()))
	var wg sync.WaitGroup
	for first := 1; first <= lastSeed; first += randomBatch {
		free <- struct{}{}
		wg.Go(func() {
			assert.NoError(t, r.record(t.Context(), first, min(first+randomBatch-1, lastSeed)))
			<-free
		})
	}
	wg.Wait()
	for seed := 1; seed <= lastSeed; seed++ {
		if line := r.lines[seed]; strings.HasPrefix(line, "#") {
			t.Log("not recorded: ", line)
		}
	}
}

// A kernel that dies is the only one that is not recorded: seed 14 calls itself, for
// which there is too little stack here.
func TestRandomRecorderGoesOn(t *testing.T) {
	takes(t, randomVersion)
	r := &randomRecorder{dir: t.TempDir(), stack: 64, lines: map[int]string{}}
	require.NoError(t, r.record(t.Context(), 12, 16))
	require.Equal(t, "# 14 CUDA_ERROR_ILLEGAL_ADDRESS\n", r.lines[14])
	for _, seed := range []int{12, 13, 15, 16} {
		require.Regexp(t, fmt.Sprintf("^%d [0-9a-f]{16}\n$", seed), r.lines[seed])
	}
	text, err := os.ReadFile(filepath.Join(r.dir, "random.txt"))
	require.NoError(t, err)
	require.Equal(t, 5, strings.Count(string(text), "\n"))
}

// A kernel that the driver does not take is found among those that it does.
func TestRandomRecorderFindsWhatIsRefused(t *testing.T) {
	takes(t, randomVersion)
	r := &randomRecorder{dir: t.TempDir(), stack: randomStack, lines: map[int]string{}}
	require.NoError(t, r.record(t.Context(), refusedSeed-2, refusedSeed+2))
	for seed, line := range r.lines {
		require.Equal(t, seed == refusedSeed, strings.HasPrefix(line, fmt.Sprintf("# %d refused", seed)), line)
	}
	require.Len(t, r.lines, 5)
}
