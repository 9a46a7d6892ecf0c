package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpufd/gpufd/cu/cutest"
)

// A batch is what one process of a test binary runs: some of the suite's tests,
// or all if none are listed.
type batch struct {
	*suite
	tests []test
}

// first are the packages that start before others, because they take longest: on
// a GPU the random kernels of tests/corpus.
var first = append([]string{"tests/corpus"}, dealt...)

// dealt are the packages whose tests are dealt out to several processes: they
// wait for processes, deadlines and sockets. Other packages' tests end too soon
// for that to pay.
var dealt = []string{"tests", "share", "keeper", "internal/suite", "sock", "cu/soft/internal/ptx"}

// perBatch is how many tests of such a package a process runs.
const perBatch = 12

// runAll builds the suites and runs them. On a GPU the suites that may share it
// run first, side by side; those that count or fill its memory follow, one
// process at a time.
func (c config) runAll(suites map[string]*suite) {
	dir, err := os.MkdirTemp("", "gpufd-suite")
	if err != nil {
		for _, s := range suites {
			s.fail(err.Error())
		}
		return
	}
	defer os.RemoveAll(dir)
	c.buildAll(dir, suites)
	if err := c.buildCommands(dir); err != nil {
		fmt.Fprintln(c.said, "suite:", err) // tests that need them say so too
	}
	var together, alone []batch
	for _, pkg := range c.inOrder(suites) {
		s := suites[pkg]
		batches := s.batches()
		s.left = len(batches)
		switch {
		case s.mayDefer():
			s.left++ // for those that run alone
		case s.left == 0:
			s.print()
		}
		if s.shares() {
			together = append(together, batches...)
		} else {
			alone = append(alone, batches...)
		}
	}
	used, known := c.gpuMemory()
	runBatches(together, c.atOnce, c.hardware)
	if known {
		c.requireMemory(used, suites)
	}
	runBatches(append(alone, c.deferred(suites)...), 1, false)
}

// buildCommands makes the programs that tests start, unless they are there.
func (c config) buildCommands(dir string) error {
	if c.bundle || os.Getenv("GPUFD_BIN") != "" {
		return nil
	}
	bin := filepath.Join(dir, "bin")
	if err := c.goTool([]string{"CGO_ENABLED=0"}, "build", "-o", bin+"/", "./cmd/...", "./examples/go/..."); err != nil {
		return err
	}
	return os.Setenv("GPUFD_BIN", bin)
}

// inOrder returns the packages, those that take longest first.
func (c config) inOrder(suites map[string]*suite) []string {
	packages := sorted(suites)
	slices.SortStableFunc(packages, func(a, b string) int { return rank(a) - rank(b) })
	return packages
}

func rank(pkg string) int {
	if i := slices.Index(first, pkg); i >= 0 {
		return i
	}
	return len(first)
}

// shares reports whether processes of the suite run beside others.
func (s *suite) shares() bool { return !s.hardware || slices.Contains(s.together, s.pkg) }

// mayDefer reports whether some of its tests may wait until they have the GPU to
// themselves.
func (s *suite) mayDefer() bool { return s.hardware && s.shares() }

// batches deals the tests out.
func (s *suite) batches() []batch {
	if s.failure != "" {
		return nil
	}
	if !slices.Contains(dealt, s.pkg) || !s.shares() || s.tests != nil && len(s.tests) <= perBatch {
		return []batch{{s, s.tests}}
	}
	tests, err := s.tests, error(nil)
	if tests == nil {
		tests, err = s.names()
	}
	if err != nil {
		s.fail(err.Error())
	}
	return s.deal(tests)
}

// deal gives each process tests from everywhere, as neighbours often take equally
// long. Tests of one function stay together.
func (s *suite) deal(tests []test) []batch {
	batches := make([]batch, (len(tests)+perBatch-1)/perBatch)
	places := map[string]int{}
	for _, t := range tests {
		i, seen := places[t.name]
		if !seen {
			i = len(places) % len(batches)
			places[t.name] = i
		}
		batches[i].suite = s
		batches[i].tests = append(batches[i].tests, t)
	}
	return slices.DeleteFunc(batches, func(b batch) bool { return b.tests == nil })
}

// deferred returns the tests that were skipped because they have to run alone.
func (c config) deferred(suites map[string]*suite) (batches []batch) {
	for _, pkg := range c.inOrder(suites) {
		s := suites[pkg]
		if !s.mayDefer() {
			continue
		}
		if tests := s.deferred(); len(tests) > 0 {
			batches = append(batches, batch{s, tests})
		} else {
			s.ended(0)
		}
	}
	return batches
}

// deferred forgets and returns the suite's tests that have to run alone. It does
// not run one again if a part of it has failed.
func (s *suite) deferred() (tests []test) {
	for name, one := range s.results {
		function, _, _ := strings.Cut(name, "/")
		if one.verdict == skipped && strings.Contains(one.reason(), cutest.RunsAlone) && !s.results.failed(function) {
			tests = append(tests, test{pkg: s.pkg, name: function})
		}
	}
	slices.SortFunc(tests, func(a, b test) int { return strings.Compare(a.name, b.name) })
	tests = slices.CompactFunc(tests, func(a, b test) bool { return a.name == b.name })
	for _, t := range tests {
		s.results.forget(t.name)
	}
	return tests
}

// runBatches runs atOnce batches at a time.
func runBatches(batches []batch, atOnce int, sharedGPU bool) {
	turn := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for _, b := range batches {
		turn <- struct{}{} // in their order
		wg.Go(func() {
			defer func() { <-turn }()
			b.run(sharedGPU)
		})
	}
	wg.Wait()
}

// run runs the tests. After a crash it runs those that had not had their turn
// again, without the one that crashed.
func (b batch) run(sharedGPU bool) {
	began := time.Now()
	for pending := b.tests; ; {
		round, beside, ended := b.start(pending, sharedGPU)
		if ended != "" && !round.blame(ended) {
			b.fail(ended)
		}
		b.take(round, beside)
		left := slices.DeleteFunc(slices.Clone(pending), func(t test) bool { return round[t.name] != nil })
		if ended == "" || len(left) == 0 || len(left) == len(pending) || b.ctx.Err() != nil {
			break
		}
		pending = left
	}
	b.requireAll()
	b.ended(time.Since(began))
}

// requireAll fails the tests that were to run but did not.
func (b batch) requireAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.tests {
		if b.failure == "" && b.results[t.name] == nil {
			*b.results.of(t.name) = result{verdict: failed, why: "did not run: there is no such test"}
		}
	}
}

// grace is how long a test binary may run beyond its limit to say where it hangs.
const grace = 5 * time.Second

// start runs the binary once. It returns the results of the tests, what the
// binary printed beside them, and how it ended, if that was badly.
func (b batch) start(tests []test, sharedGPU bool) (round results, beside []string, ended string) {
	ctx, cancel := context.WithTimeout(b.ctx, b.limit+grace)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.binary, "-test.v=test2json", "-test.paniconexit0", "-test.timeout="+b.limit.String())
	if tests != nil {
		cmd.Args = append(cmd.Args, "-test.run="+patterns(tests))
	}
	if b.short {
		cmd.Args = append(cmd.Args, "-test.short")
	}
	cmd.Dir = b.dir()
	cmd.Env = append(environment(), "PWD="+cmd.Dir)
	if b.hardware {
		cmd.Env = append(cmd.Env, "GPUFD_REQUIRE="+strings.TrimPrefix(os.Getenv("GPUFD_REQUIRE")+",gpu", ","))
	}
	if sharedGPU {
		cmd.Env = append(cmd.Env, cutest.SharedGPU+"=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its children end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace
	var out bytes.Buffer
	cmd.Stdout = &out
	if b.verbose {
		cmd.Stdout = io.MultiWriter(&out, unmarked{b.said})
	}
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	round = results{}
	beside = round.parse(out.String())
	switch {
	case b.ctx.Err() != nil:
		return round, beside, "interrupted"
	case ctx.Err() != nil:
		return round, beside, fmt.Sprintf("hung, and was killed after %s", b.limit+grace)
	case err == nil && round.unfinished():
		return round, beside, "the test process ended early"
	}
	return round, beside, ending(out.String(), err)
}

// environment returns the environment of the tests, without what differs between their
// processes: the software driver's directory, and whether they share a GPU.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "GPUFD_SOFT_DIR=") || strings.HasPrefix(v, cutest.SharedGPU+"=")
	})
}

// unmarked passes on what is for people.
type unmarked struct{ io.Writer }

// Write is what os/exec calls.
func (w unmarked) Write(b []byte) (int, error) {
	_, err := w.Writer.Write(bytes.ReplaceAll(b, []byte(mark), nil))
	return len(b), err
}

// patterns returns a -test.run for all of tests.
func patterns(tests []test) string {
	var all []string
	for _, t := range tests {
		all = append(all, t.pattern())
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "|")
}

var lastWords = regexp.MustCompile(`(?m)^(?:panic: |fatal error: |leak: )(.*?)(?: \[recovered.*\])?$(?:\n  *(.*))?`)

// ending says in a line why a process ended badly, or returns "".
func ending(out string, err error) string {
	if err == nil {
		return ""
	}
	m := lastWords.FindStringSubmatch(out)
	switch {
	case m == nil:
		return "the test process ended early: " + err.Error()
	case strings.HasPrefix(m[1], "test timed out"):
		return "hung: " + m[1]
	case strings.HasPrefix(m[0], "leak: "):
		return m[1] + " " + m[2]
	}
	return "crashed: " + m[1]
}
