package cutest

import (
	"cmp"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
)

// Faults make functions of the driver fail in a test, or do something else:
//
//	faults := cutest.NewFaults(t)
//	dev := cutest.Device(t, faults.Option())
//	ctx := cutest.Context(t, dev)
//	faults.Fail("cuMemAlloc", cu.ErrOutOfMemory)
//	_, err := ctx.Alloc(4096) // fails without a call of the driver
//
// Functions have the names of NVIDIA's documentation. A name stands for every
// version of the function: cuMemAlloc is cuMemAlloc_v2, too. A name that ends in
// a version is that symbol and no other. A name that the driver API does not have
// ends the test at once. A fault that never fired fails the test when it ends.
// Faults are safe for concurrent use.
type Faults struct {
	t      testing.TB
	mu     sync.Mutex
	faults []*Fault
	calls  map[string]int // by symbol
}

// NewFaults returns an empty set of faults for t. They take effect in drivers
// that are opened with its Option.
func NewFaults(t testing.TB) *Faults {
	t.Helper()
	f := &Faults{t: t, calls: map[string]int{}}
	t.Cleanup(f.report)
	return f
}

// Option makes a driver meet the faults. Pass it to [Device], [Driver], [Open] or
// [cu.Open].
func (f *Faults) Option() cu.Option { return cu.WithHook(f.hook) }

// Fail makes each later call of function fail with r. The driver does not see the
// calls.
func (f *Faults) Fail(function string, r cu.Result) *Fault {
	f.t.Helper()
	return f.set(&Fault{function: function, hook: f.answer(r)})
}

// FailNth makes the nth call of function from now on fail with r; 1 is the next.
// The driver sees the calls before and after it.
func (f *Faults) FailNth(function string, n int, r cu.Result) *Fault {
	f.t.Helper()
	if n < 1 {
		f.t.Fatalf("cutest: FailNth of call %d: the next call is 1", n)
	}
	return f.set(&Fault{function: function, hook: f.answer(r), nth: n})
}

// Hook puts h around each later call of function, for more than a failure: h may
// look, wait, store a result, or make the call and change its answer.
func (f *Faults) Hook(function string, h sys.Hook) *Fault {
	f.t.Helper()
	return f.set(&Fault{function: function, hook: h})
}

// answer returns a hook that fails with r.
func (f *Faults) answer(r cu.Result) sys.Hook {
	f.t.Helper()
	if r == 0 {
		f.t.Fatalf("cutest: a fault with result 0, which is success")
	}
	return func(sys.Call, func() sys.CUresult) sys.CUresult { return sys.CUresult(r) }
}

// A Fault is what one function does from now on. If a function has several
// faults, the one that was set last counts, until its Stop.
type Fault struct {
	of       *Faults
	function string
	hook     sys.Hook
	nth      int    // the only call that it is for, or 0
	where    string // where it was set
	stopped  bool
	met      int // calls while it was set
	fired    int
}

// Stop ends the fault; the function works again. A second Stop does nothing.
func (x *Fault) Stop() {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.stopped = true
}

// set adds x and records the caller of its caller.
func (f *Faults) set(x *Fault) *Fault {
	f.t.Helper()
	if all := sys.Symbols(); !slices.ContainsFunc(all, x.is) {
		f.t.Fatalf("cutest: the driver API has no function %q; the nearest are %s", x.function, nearest(x.function, all))
	}
	_, file, line, _ := runtime.Caller(2)
	x.of, x.where = f, fmt.Sprintf("%s:%d", filepath.Base(file), line)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults = append(f.faults, x)
	return x
}

func (f *Faults) hook(call sys.Call, next func() sys.CUresult) sys.CUresult {
	if x := f.meet(call.Symbol()); x != nil {
		return x.hook(call, next)
	}
	return next()
}

// meet counts a call, and returns the fault that fires for it.
func (f *Faults) meet(symbol string) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls[symbol]++
	for _, x := range slices.Backward(f.faults) {
		if x.stopped || !x.is(symbol) {
			continue
		}
		x.met++
		if x.nth != 0 && x.nth != x.met {
			return nil
		}
		x.fired++
		return x
	}
	return nil
}

// report fails the test for each fault that never fired. A test that has failed
// or skipped itself may not have come so far.
func (f *Faults) report() {
	f.t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.t.Skipped() || f.t.Failed() {
		return
	}
	for _, x := range f.faults {
		if x.fired == 0 {
			f.t.Errorf("cutest: the fault in %s, set at %s, never fired: %s", x.function, x.where, x.why(f.calls))
		}
	}
}

// why says why x never fired, given all calls of the test.
func (x *Fault) why(calls map[string]int) string {
	if len(calls) == 0 {
		return "no driver was opened with the Option of these faults"
	}
	var others []string
	all := 0
	for symbol, n := range calls {
		if x.is(symbol) {
			all += n
		} else {
			others = append(others, symbol)
		}
	}
	switch {
	case all == 0:
		return "it was not called; the most similar functions called are " + nearest(x.function, others)
	case x.nth > 0:
		return fmt.Sprintf("it was called %s, %d while the fault was set, which is for call %d", times(all), x.met, x.nth)
	}
	return fmt.Sprintf("it was called %s, but not while the fault was set", times(all))
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

// is reports whether symbol is the fault's function, or a version of it.
func (x *Fault) is(symbol string) bool { return symbol == x.function || plain(symbol) == x.function }

var version = regexp.MustCompile(`_v\d+$`)

// plain returns a symbol without its version, as in the documentation.
func plain(symbol string) string { return version.ReplaceAllString(symbol, "") }

// nearest lists the three symbols with the names most like name.
func nearest(name string, symbols []string) string {
	var names []string
	for _, s := range symbols {
		names = append(names, plain(s))
	}
	slices.Sort(names)
	names = slices.Compact(names)
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(distance(name, a), distance(name, b)) })
	return strings.Join(names[:min(3, len(names))], ", ")
}

// distance returns how many letters have to be added, removed or changed to turn
// a into b (Levenshtein), ignoring case.
func distance(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1) // row[j] is the distance of a[:i] and b[:j]
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			changed := diagonal
			if a[i] != b[j] {
				changed++
			}
			diagonal = row[j+1]
			row[j+1] = min(changed, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
