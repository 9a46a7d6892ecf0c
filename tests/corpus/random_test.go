package corpus

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
)

// Seeds of random kernels: from 1 on, and from firstLoose on of those whose sums and
// products say nothing of rounding, from firstPlain on without branches.
const (
	refusedSeed = 1000 // a module of which no driver takes
	firstLoose  = 641
	firstPlain  = 721
	lastSeed    = 880
	randomBatch = 40 // kernels of a module
)

// Levels of optimisation that random kernels are compiled with.
const (
	optimised = 4 // as without a word
	asWritten = 0
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

func newRandomRunner(c *cu.Context) (r *randomRunner, err error) {
	r = &randomRunner{c: c}
	if err := c.SetLimit(cu.LimitStackSize, randomStack); err != nil {
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
	if err := errors.Join(cu.CopyToDeviceAsync(r.s, r.in.Ptr(), kase{kernel: "random", bytes: randomInput}.input()), r.s.Synchronize(context.Background())); err != nil {
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
func (r *randomRunner) batch(seeds []int, level uint32, each func(seed int, out []byte) error) error {
	return r.compiled(seeds, each, cu.JITOptimization(level))
}

// compiled is batch with other options of the compiler.
func (r *randomRunner) compiled(seeds []int, each func(seed int, out []byte) error, opts ...cu.JITOption) error {
	text := randomHeader
	for _, seed := range seeds {
		text += kernel(seed)
	}
	m, err := r.c.LoadModule([]byte(text), opts...)
	if err != nil {
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	defer m.Close()
	for _, seed := range seeds {
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
	return out, errors.Join(cu.CopyToHostAsync(r.s, out, r.out.Ptr()), r.s.Synchronize(ctx))
}

func randomHash(out []byte) string {
	h := sha256.Sum256(out)
	return hex.EncodeToString(h[:8])
}

// A leaving is what an H200 has made of a random kernel, a hash or what it died of: as the
// kernel is optimised, and as it is written.
type leaving struct{ optimised, asWritten string }

// ran reports whether it is a hash.
func ran(what string) bool { return len(what) == 16 }

// of is what a driver is to leave. An optimiser may change what a kernel leaves where
// that says nothing of rounding. Where it does so elsewhere, it is wrong, and the
// software driver need not be; nor does the GPU always leave the same then.
func (o leaving) of(seed int, level uint32) string {
	switch {
	case level == asWritten:
		return o.asWritten
	case o.agreed(seed):
		return o.optimised
	case cutest.Kind() == cu.Soft:
		return o.asWritten
	}
	return "unknown"
}

// agreed reports whether the H200 gives a kernel's bits, and not its optimiser others.
func (o leaving) agreed(seed int) bool {
	return ran(o.optimised) && ran(o.asWritten) && (seed >= firstLoose || o.optimised == o.asWritten)
}

// randomRecorded reads what each left.
func randomRecorded(t *testing.T) map[int]leaving {
	text := ok(os.ReadFile(filepath.Join(*directory, "random.txt")))(t)
	known := map[int]leaving{}
	for line := range strings.Lines(string(text)) {
		var seed int
		var o leaving
		require.NoError(t, errOf(fmt.Sscan(line, &seed, &o.optimised, &o.asWritten)))
		known[seed] = o
	}
	return known
}

// seeds are those from first to last.
func seeds(first, last int) (list []int) {
	for seed := first; seed <= last; seed++ {
		list = append(list, seed)
	}
	return list
}

// unlike is a kernel of which the software driver leaves something else, optimised: the
// GPU rounds some product and sum otherwise there.
const unlike = 706

// leastRecorded is how many random kernels have to be equal, once they are recorded.
const leastRecorded = 500

// Random kernels leave what they leave on an H200. With -record, what they
// leave is written to that directory instead.
func TestRandom(t *testing.T) {
	takes(t, randomVersion)
	if *recordTo != "" {
		recordRandom(t, *recordTo)
		return
	}
	r := ok(newRandomRunner(cutest.Context(t, cutest.Device(t))))(t)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	known := randomRecorded(t)
	require.Len(t, known, lastSeed, "GPUFD_DRIVER=cuda go test ./tests/corpus -run TestRandom$ -record DIRECTORY on an H200 makes random.txt")
	equal := map[int]int{}
	for first := 1; first <= lastSeed; first += randomBatch {
		for _, level := range []uint32{optimised, asWritten} {
			list := slices.DeleteFunc(seeds(first, min(first+randomBatch-1, lastSeed)), func(seed int) bool { return !ran(known[seed].of(seed, level)) })
			require.NoError(t, r.batch(list, level, func(seed int, out []byte) error {
				if same := randomHash(out) == known[seed].of(seed, level); seed == unlike && level == optimised && cutest.Kind() == cu.Soft {
					assert.False(t, same, "seed %d is alike now", seed)
				} else if !same {
					t.Errorf("seed %d differs, optimised %d:\n%s", seed, level, randomHeader+kernel(seed))
				} else if known[seed].agreed(seed) {
					equal[seed]++
				}
				return nil
			}))
		}
	}
	both := 0
	for _, n := range equal {
		both += n / 2
	}
	require.GreaterOrEqual(t, both, leastRecorded)
	t.Logf("%d random kernels are equal, of %d", both, lastSeed)
}

// For a debugger nothing is optimised.
func TestRandomForADebugger(t *testing.T) {
	takes(t, randomVersion)
	r := ok(newRandomRunner(cutest.Context(t, cutest.Device(t))))(t)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	known, changed := randomRecorded(t), 0
	require.NoError(t, r.compiled(seeds(firstPlain, firstPlain+19), func(seed int, out []byte) error {
		require.Equal(t, known[seed].asWritten, randomHash(out), seed)
		if known[seed].asWritten != known[seed].optimised {
			changed++
		}
		return nil
	}, cu.JITDebugInfo()))
	require.Positive(t, changed)
}

// randomChild runs the kernels of the seeds of its arguments, from to, optimised how far, and writes a line for each: its hash, or what it died of, which is the last
// line. What each leaves goes into the directory of the last argument.
func randomChild() error {
	cutest.ExpectLeaks() // contexts that are lost
	var from, to int
	var level uint32
	testenv.Got(fmt.Sscan(strings.Join(os.Args[1:4], " "), &from, &to, &level))
	dev := testenv.Got(testenv.Got(cutest.Open()).Device(0))
	r := testenv.Got(newRandomRunner(testenv.Got(dev.PrimaryContext())))
	err := r.batch(seeds(from, to), level, func(n int, out []byte) error {
		fmt.Println(randomHash(out))
		return os.WriteFile(filepath.Join(os.Args[4], fmt.Sprintf("%d.%d.bin", n, level)), out, 0o644)
	})
	switch {
	case errors.Is(err, errRefused):
		fmt.Println("refused:" + result(err))
	case err != nil:
		fmt.Println(result(err))
	}
	return nil
}

// A randomRecorder records random kernels, each batch in a process of its own, as one
// that dies takes all contexts of its process along.
type randomRecorder struct {
	dir   string
	mu    sync.Mutex
	found map[int]leaving
}

// randomPatience is for one process: it may be that a kernel does not end.
const randomPatience = 25 * time.Second

// note takes what became of a seed, and writes down all that is known by now.
func (r *randomRecorder) note(seed int, level uint32, what string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.found[seed]
	if level == optimised {
		f.optimised = what
	} else {
		f.asWritten = what
	}
	r.found[seed] = f
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(r.found)) {
		fmt.Fprintln(&b, n, cmp.Or(r.found[n].optimised, "-"), cmp.Or(r.found[n].asWritten, "-"))
	}
	return os.WriteFile(filepath.Join(r.dir, "random.txt"), []byte(b.String()), 0o644)
}

// record records some seeds at one level. One that dies is noted, and the others begin
// anew; of a module that is refused each half is tried.
func (r *randomRecorder) record(ctx context.Context, first, last int, level uint32) error {
	for first <= last {
		for _, what := range r.child(ctx, first, last, level) {
			if strings.HasPrefix(what, "refused") && first < last {
				middle := first + (last-first)/2
				return errors.Join(r.record(ctx, first, middle, level), r.record(ctx, middle+1, last, level))
			}
			if err := r.note(first, level, what); err != nil {
				return err
			}
			first++
		}
	}
	return nil
}

// child gives the lines of a process, of which there is at least one.
func (r *randomRecorder) child(ctx context.Context, first, last int, level uint32) []string {
	ctx, cancel := context.WithTimeout(ctx, randomPatience)
	defer cancel()
	cmd := cutest.Child(ctx, "random")
	cmd.Args = append(cmd.Args, fmt.Sprint(first), fmt.Sprint(last), fmt.Sprint(level), r.dir)
	out, err := cmd.Output()
	lines := strings.Fields(string(out))
	if n := len(lines); n == 0 || err != nil && ran(lines[n-1]) && n <= last-first {
		lines = append(lines, "ended")
	}
	return lines
}

// recordRandom writes hashes to random.txt, and what each kernel leaves to a file of
// its own, with several processes at once.
func recordRandom(t *testing.T, dir string) {
	r := &randomRecorder{dir: dir, found: map[int]leaving{}}
	free := make(chan struct{}, min(6, runtime.NumCPU()))
	var wg sync.WaitGroup
	for first := 1; first <= lastSeed; first += randomBatch {
		for _, level := range []uint32{optimised, asWritten} {
			free <- struct{}{}
			wg.Go(func() {
				assert.NoError(t, r.record(t.Context(), first, min(first+randomBatch-1, lastSeed), level))
				<-free
			})
		}
	}
	wg.Wait()
	for seed, f := range r.found {
		if !f.agreed(seed) {
			t.Log("the GPU does not agree with itself: ", seed, f)
		}
	}
}
