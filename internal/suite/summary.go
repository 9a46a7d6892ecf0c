package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ended notes that one of the suite's processes has ended, and prints the suite's
// line after the last.
func (s *suite) ended(took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took += took
	if s.left--; s.left == 0 {
		s.print()
	}
}

// print says how many tests passed, failed and were skipped, and how long its processes took
// together.
func (s *suite) print() {
	n := s.results.count()
	word := "ok  "
	if n[failed] > 0 || s.failure != "" {
		word = "FAIL"
	}
	fmt.Fprintf(s.said, "%s %s: %d passed, %d failed, %d skipped, %.1f s\n", word, s.pkg, n[passed], n[failed], n[skipped], s.took.Seconds())
}

// summary prints what failed, what was not run, and the counts, and returns the exit code.
func (c config) summary(suites map[string]*suite, took time.Duration) int {
	total := map[verdict]int{}
	for _, pkg := range sorted(suites) {
		s := suites[pkg]
		s.explain()
		for v, n := range s.results.count() {
			total[v] += n
		}
		if s.failure != "" {
			total[failed]++
		}
	}
	c.printSlowest(suites)
	c.printSkips(suites)
	fmt.Fprintf(c.out, "the tests of %d packages took %.0f s\n", len(suites), took.Seconds())
	fmt.Fprintf(c.out, "%d passed, %d failed, %d skipped\n", total[passed], total[failed], total[skipped])
	if total[failed] > 0 || total[passed] == 0 {
		return 1
	}
	return 0
}

// explain prints what the suite's failed tests said, and what its processes
// printed beside them.
func (s *suite) explain() {
	for _, name := range slices.Sorted(maps.Keys(s.results)) {
		one := s.results[name]
		if one.verdict != failed {
			continue
		}
		fmt.Fprintf(s.out, "--- FAIL: %s %s: %s\n", s.pkg, name, one.reason())
		for _, line := range one.output {
			fmt.Fprintln(s.out, line)
		}
	}
	if s.failure != "" {
		fmt.Fprintf(s.out, "--- FAIL: %s: %s\n", s.pkg, s.failure)
	}
	bad := s.failure != "" || s.results.count()[failed] > 0
	for _, line := range s.beside {
		if bad || strings.HasPrefix(line, "conformance:") {
			fmt.Fprintf(s.out, "%s: %s\n", s.pkg, line)
		}
	}
}

// printSlowest names the tests that took longest.
func (c config) printSlowest(suites map[string]*suite) {
	type timed struct {
		name string
		took float64
	}
	var all []timed
	for pkg, s := range suites {
		for name, one := range s.results {
			if !strings.Contains(name, "/") {
				all = append(all, timed{pkg + " " + name, one.seconds})
			}
		}
	}
	slices.SortFunc(all, func(a, b timed) int { return cmp.Compare(b.took, a.took) })
	for _, t := range all[:min(c.slowest, len(all))] {
		fmt.Fprintf(c.out, "slow: %6.2f s %s\n", t.took, t.name)
	}
}

// printSkips names the tests that were not run, by reason.
func (c config) printSkips(suites map[string]*suite) {
	byReason := map[string][]string{}
	for _, pkg := range sorted(suites) {
		s := suites[pkg]
		for _, name := range slices.Sorted(maps.Keys(s.results)) {
			if one := s.results[name]; one.verdict == skipped {
				byReason[one.reason()] = append(byReason[one.reason()], pkg+" "+name)
			}
		}
	}
	for _, why := range slices.Sorted(maps.Keys(byReason)) {
		fmt.Fprintf(c.out, "not run: %s: %s\n", why, strings.Join(byReason[why], ", "))
	}
}

// gpuMemory returns how many MiB are in use on all GPUs that the tests may use,
// as nvidia-smi says, and whether that is known.
func (c config) gpuMemory() (mib int, known bool) {
	if !c.hardware {
		return 0, false
	}
	args := []string{"--query-gpu=memory.used", "--format=csv,noheader,nounits"}
	if visible := os.Getenv("CUDA_VISIBLE_DEVICES"); visible != "" {
		args = append(args, "--id="+visible)
	}
	out, err := exec.CommandContext(c.ctx, "nvidia-smi", args...).Output()
	if err != nil {
		fmt.Fprintln(c.said, "suite: GPU memory that is left behind goes unnoticed: nvidia-smi:", err)
		return 0, false
	}
	for _, word := range strings.Fields(string(out)) {
		n, _ := strconv.Atoi(word)
		mib += n
	}
	return mib, true
}

// memoryPatience is how long a driver may take to free what ended processes had.
var memoryPatience = 20 * time.Second

// requireMemory fails the suites that shared the GPU if more of its memory is in
// use than before: none of them has counted it.
func (c config) requireMemory(before int, suites map[string]*suite) {
	now, known := c.gpuMemory()
	for end := time.Now().Add(memoryPatience); now > before && c.ctx.Err() == nil && time.Now().Before(end); now, known = c.gpuMemory() {
		time.Sleep(100 * time.Millisecond)
	}
	if !known || now <= before {
		return
	}
	for _, s := range suites {
		if s.shares() {
			s.fail(fmt.Sprintf("left behind, by one of %s: %d MiB of GPU memory are in use, before it were %d", strings.Join(c.together, ", "), now, before))
		}
	}
}
