package main

import (
	"regexp"
	"strconv"
	"strings"
)

// A verdict is what became of a test or a row.
type verdict string

// The verdicts; the zero value is for tests that did not run.
const (
	passed  verdict = "PASS"
	failed  verdict = "FAIL"
	skipped verdict = "SKIP"
)

// A result is what became of one test or subtest.
type result struct {
	verdict verdict
	output  []string // lines
	why     string   // why it failed, if it printed nothing
	seconds float64
}

// results are by name. A test without a verdict began but did not end.
type results map[string]*result

func (r results) of(name string) *result {
	if r[name] == nil {
		r[name] = &result{}
	}
	return r[name]
}

// count counts the tests by their verdicts, subtests included.
func (r results) count() map[verdict]int {
	n := map[verdict]int{}
	for _, one := range r {
		n[one.verdict]++
	}
	return n
}

// forget drops the results of a test and its subtests.
func (r results) forget(function string) {
	for name := range r {
		if name == function || strings.HasPrefix(name, function+"/") {
			delete(r, name)
		}
	}
}

// failed reports whether a test or one of its subtests failed.
func (r results) failed(function string) bool {
	for name, one := range r {
		if one.verdict == failed && (name == function || strings.HasPrefix(name, function+"/")) {
			return true
		}
	}
	return false
}

// unfinished reports whether a test began but did not end.
func (r results) unfinished() bool {
	for _, one := range r {
		if one.verdict == "" {
			return true
		}
	}
	return false
}

// blame gives the reason why to tests that did not end, or failed without a word,
// and reports whether any test failed at all.
func (r results) blame(why string) (any bool) {
	for _, one := range r {
		if one.verdict == "" {
			one.verdict, one.why = failed, why
		}
		any = any || one.verdict == failed
	}
	for name, one := range r {
		if one.verdict == failed && one.reason() == noReason && r.below(name) == "" {
			one.why = why
		}
	}
	return any
}

// below names a subtest that failed, and why, if one did.
func (r results) below(name string) string {
	least := ""
	for sub, one := range r {
		if one.verdict != failed || !strings.HasPrefix(sub, name+"/") {
			continue
		}
		if text := strings.TrimPrefix(sub, name+"/") + ": " + one.reason(); least == "" || text < least {
			least = text
		}
	}
	return least
}

// mark precedes each line of package testing with -test.v=test2json, so that
// nothing tests print can be taken for one.
const mark = "\x16"

var framing = regexp.MustCompile(`^ *(?:=== (RUN|NAME|CONT|PAUSE)|--- (PASS|FAIL|SKIP):) +(\S+)(?: \(([0-9.]+)s\))?`)

// parse adds what a test binary printed, run with -test.v=test2json, and returns
// the lines that belong to no test.
func (r results) parse(out string) (beside []string) {
	out = strings.NewReplacer("\x0e", "", "\x0f", "", "\r", "").Replace(out) // marks of errors
	current := ""
	for line := range strings.Lines(out) {
		said, frame, framed := strings.Cut(strings.TrimSuffix(line, "\n"), mark)
		switch {
		case said == "" && framed:
		case current != "":
			r.of(current).output = append(r.of(current).output, said)
		case said != "" && said != "PASS" && said != "FAIL":
			beside = append(beside, said)
		}
		if m := framing.FindStringSubmatch(frame); m != nil {
			current = m[3]
			if m[1] == "PAUSE" {
				current = ""
			}
			if one := r.of(m[3]); m[2] != "" {
				one.verdict = verdict(m[2])
				one.seconds, _ = strconv.ParseFloat(m[4], 64)
				current = ""
			}
		}
	}
	return beside
}

const noReason = "without a reason"

var (
	logged   = regexp.MustCompile(`(?:^|\s)[\w-]+\.go:\d+: (.+)`)
	asserted = regexp.MustCompile(`^\s*Error:\s+(.+)`)
)

// reason returns in one line what a test said when it failed or was skipped.
func (r *result) reason() string {
	if r.why != "" {
		return r.why
	}
	for i, line := range r.output {
		if m := asserted.FindStringSubmatch(line); m != nil {
			return strings.Join(append(strings.Fields(m[1]), continued(r.output[i+1:])...), " ")
		}
	}
	for _, line := range r.output {
		if m := logged.FindStringSubmatch(line); m != nil {
			return strings.TrimSpace(m[1])
		}
	}
	return noReason
}

// mostContinued limits how many lines of an assertion follow its first: which
// error, or which values.
const mostContinued = 2

// continued returns the words of the lines below an "Error:" that belong to it.
func continued(lines []string) (words []string) {
	for i, line := range lines {
		if i == mostContinued || !strings.HasPrefix(strings.TrimLeft(line, " "), "\t            \t") {
			break
		}
		words = append(words, strings.Fields(line)...)
	}
	return words
}
