package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A suite is the test binary of a package and what became of its tests.
type suite struct {
	config
	pkg     string
	binary  string
	tests   []test
	results results
	failure string // of the whole: it cannot be built, or leaves something behind
	missing bool   // it is not in the bundle
}

// grace is what a test binary may take beyond its limit to say where it hangs.
const grace = 5 * time.Second

// runAll runs the tests of the rows, package by package: several at once on the
// software driver, one at a time on a GPU, whose memory tests measure.
func (c config) runAll(rows []row) map[string]*suite {
	suites := map[string]*suite{}
	for _, r := range rows {
		for _, t := range r.tests {
			s := suites[t.pkg]
			if s == nil {
				s = &suite{config: c, pkg: t.pkg, results: results{}}
				suites[t.pkg] = s
			}
			s.tests = append(s.tests, t)
		}
	}
	dir, err := os.MkdirTemp("", "gpufd-faults")
	if err != nil {
		fmt.Fprintln(c.said, "faults:", err)
	}
	defer os.RemoveAll(dir)
	atOnce := min(runtime.NumCPU(), 4)
	if c.hardware {
		atOnce = 1
	}
	turn := make(chan struct{}, atOnce)
	var wg sync.WaitGroup
	for _, s := range suites {
		wg.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			s.run(dir)
		})
	}
	wg.Wait()
	return suites
}

// run builds the suite, if that is to be done, and runs its tests. After a
// crash those that had not had their turn are run again, without it.
func (s *suite) run(dir string) {
	if !s.build(dir) {
		return
	}
	began := time.Now()
	for pending := s.tests; len(pending) > 0; {
		round, ended := s.start(pending)
		if ended != "" && !round.blame(ended) {
			s.failure = ended
		}
		maps.Copy(s.results, round)
		left := slices.DeleteFunc(slices.Clone(pending), func(t test) bool { return s.results[t.function()] != nil })
		if ended == "" || len(left) == len(pending) || s.ctx.Err() != nil {
			break
		}
		pending = left
	}
	fmt.Fprintf(s.said, "faults: the tests of %s took %s\n", s.pkg, time.Since(began).Round(100*time.Millisecond))
}

// build finds or makes the test binary.
func (s *suite) build(dir string) bool {
	if s.bundle {
		s.binary = filepath.Join(s.root, s.pkg, "suite.test")
		if _, err := os.Stat(s.binary); err != nil {
			s.missing = true
			return false
		}
		return s.absolute()
	}
	s.binary = filepath.Join(dir, strings.ReplaceAll(s.pkg, "/", "_")+".test")
	build := exec.CommandContext(s.ctx, "go", "test", "-c", "-o", s.binary, "./"+s.pkg)
	build.Dir = s.root
	if out, err := build.CombinedOutput(); err != nil {
		s.failure = "go test -c: " + strings.Join(strings.Fields(string(out)), " ")
		return false
	}
	return s.absolute()
}

// absolute makes the binary's path good in any directory.
func (s *suite) absolute() bool {
	path, err := filepath.Abs(s.binary)
	if err != nil {
		s.failure = err.Error()
	}
	s.binary = path
	return err == nil
}

// start runs the binary once and returns what became of the tests and how it
// ended, if that was badly.
func (s *suite) start(tests []test) (round results, ended string) {
	ctx, cancel := context.WithTimeout(s.ctx, s.limit+grace)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.binary, "-test.v=test2json", "-test.paniconexit0", "-test.timeout="+s.limit.String(), "-test.run="+patterns(tests))
	cmd.Dir = filepath.Join(s.root, s.pkg)
	if s.hardware {
		cmd.Env = append(os.Environ(), "GPUFD_REQUIRE_GPU=1")
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // its children end with it
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = grace
	var out bytes.Buffer
	cmd.Stdout = &out
	if s.verbose {
		cmd.Stdout = io.MultiWriter(&out, unmarked{s.said})
	}
	cmd.Stderr = cmd.Stdout
	err := cmd.Run()
	round = results{}
	round.parse(out.String())
	switch {
	case s.ctx.Err() != nil:
		return round, "interrupted"
	case ctx.Err() != nil:
		return round, fmt.Sprintf("hung, and was killed after %s", s.limit+grace)
	case err == nil && round.unfinished():
		return round, "the test process ended early"
	}
	return round, ending(out.String(), err)
}

// unmarked passes on what is for people.
type unmarked struct{ io.Writer }

// Write is what os/exec calls.
func (w unmarked) Write(b []byte) (int, error) {
	_, err := w.Writer.Write(bytes.ReplaceAll(b, []byte(mark), nil))
	return len(b), err
}

// patterns is a -test.run for all of tests.
func patterns(tests []test) string {
	var all []string
	for _, t := range tests {
		all = append(all, t.pattern())
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), "|")
}

var lastWords = regexp.MustCompile(`(?m)^(?:panic: |fatal error: |leak: )(.*?)(?: \[recovered.*\])?$(?:\n  *(.*))?`)

// ending says in a line why a process did not end well, or "".
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
