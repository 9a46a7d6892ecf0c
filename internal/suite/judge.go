package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpufd/gpufd/cu/cutest"
)

// report prints a line for each row and returns the exit code.
func (c config) report(rows []row, suites map[string]*suite, out io.Writer) int {
	counts := map[verdict]int{}
	for _, r := range rows {
		v, why := c.judge(r, suites)
		counts[v]++
		fmt.Fprintf(out, "fault %02d %s %s\n", r.number, v, why)
	}
	fmt.Fprintf(out, "%d faults: %d passed, %d failed, %d skipped\n", len(rows), counts[passed], counts[failed], counts[skipped])
	return min(counts[failed], 1)
}

// judge says what became of a row and why. A skip that the table does not
// announce is a failure.
func (c config) judge(r row, suites map[string]*suite) (v verdict, why string) {
	var skips, unannounced []string
	ran := 0
	for _, t := range r.tests {
		s := suites[t.pkg]
		if s == nil && c.bundle || s != nil && s.missing { // no GPU is involved
			continue
		}
		if s == nil {
			return failed, t.String() + ": did not run: it is of another package"
		}
		ran++
		if fault := s.fault(t); fault != "" {
			return failed, t.String() + ": " + fault
		}
		for _, why := range s.skips(t) {
			if why == cutest.Proven && s.someRan(t) {
				continue
			}
			skips = append(skips, why)
			if !t.announces(why) {
				unannounced = append(unannounced, t.String()+": "+why)
			}
		}
	}
	switch {
	case len(r.tests) > 0 && ran == 0:
		return failed, "none of its tests is in the bundle"
	case len(unannounced) > 0:
		return failed, "skipped, and docs/faults-evidence.md does not say so: " + unannounced[0]
	case r.later != "" && ran > 0:
		return skipped, "in part: not tested yet: " + r.later
	case r.later != "":
		return skipped, r.later
	case len(skips) > 0:
		slices.Sort(skips)
		return skipped, strings.Join(slices.Compact(skips), "; ")
	}
	return passed, r.fault
}

// announces reports whether the table says that t may be skipped for that reason.
func (t test) announces(why string) bool {
	return slices.ContainsFunc(t.skips, func(words string) bool { return strings.Contains(why, words) })
}

// fault says why t has not passed, or returns "" if it passed or was skipped.
func (s *suite) fault(t test) string {
	if s.failure != "" {
		return s.failure
	}
	found := false
	for name, one := range s.results {
		if !t.matches(name) {
			continue
		}
		found = true
		if one.verdict == failed {
			if below := s.results.below(name); below != "" {
				return below
			}
			return one.reason()
		}
	}
	whole := s.results[t.function()]
	switch {
	case found && whole.verdict == failed && s.results.below(t.function()) == "":
		return whole.reason() // around its subtests
	case !found && whole != nil && whole.verdict == failed:
		return "did not run: " + whole.reason()
	case !found && whole != nil && whole.verdict == skipped:
		return ""
	case !found && s.ctx.Err() != nil:
		return "did not run: interrupted"
	case !found:
		return "did not run: there is no such test"
	}
	return ""
}

// someRan reports whether some of t's subtests passed, or t itself if it has
// none.
func (s *suite) someRan(t test) bool {
	parts, ran := 0, 0
	for name, one := range s.results {
		if t.matches(name) && name != t.function() || t.name == t.function() && strings.HasPrefix(name, t.name+"/") {
			parts++
			if one.verdict == passed {
				ran++
			}
		}
	}
	whole := s.results[t.function()]
	return ran > 0 || parts == 0 && whole != nil && whole.verdict == passed
}

// skips lists why t, or some of its subtests, were skipped.
func (s *suite) skips(t test) (why []string) {
	for name, one := range s.results {
		if one.verdict == skipped && (t.matches(name) || name == t.function() || strings.HasPrefix(name, t.function()+"/") && t.name == t.function()) {
			why = append(why, one.reason())
		}
	}
	slices.Sort(why)
	return slices.Compact(why)
}
