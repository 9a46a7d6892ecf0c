package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A suite is the test binary of a package and the results of its tests.
type suite struct {
	config
	pkg    string // directory in the module
	binary string
	tests  []test // to be run; none means all

	mu      sync.Mutex
	results results
	failure string   // of the whole: it cannot be built, or it left something behind
	beside  []string // what its processes printed beside the tests
	took    time.Duration
	left    int // processes that have not ended
}

// gather returns the suites to run, by package.
func (c config) gather() (map[string]*suite, error) {
	suites := map[string]*suite{}
	add := func(pkg string, tests ...test) {
		s := suites[pkg]
		if s == nil {
			s = &suite{config: c, pkg: pkg, results: results{}}
			suites[pkg] = s
		}
		s.tests = append(s.tests, tests...)
	}
	if c.only != "" {
		tests, err := readTests(c.only)
		for _, t := range tests {
			if t.name == "" {
				add(t.pkg)
			} else {
				add(t.pkg, t)
			}
		}
		return suites, err
	}
	packages, err := c.list()
	if err != nil {
		return nil, err
	}
	for _, pkg := range packages {
		add(pkg)
	}
	return suites, nil
}

// readTests reads lines of a file: a package and a test, or a package alone for
// all of its tests.
func readTests(path string) (tests []test, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		switch words := strings.Fields(line); len(words) {
		case 1:
			tests = append(tests, test{pkg: words[0]})
		case 2:
			tests = append(tests, test{pkg: words[0], name: words[1]})
		default:
			return nil, fmt.Errorf("%s: %q: want a package and a test, or a package", path, strings.TrimSpace(line))
		}
	}
	return tests, nil
}

// list names the directories of the packages that have tests.
func (c config) list() (dirs []string, err error) {
	if c.bundle {
		return c.packages, nil
	}
	const format = `{{if or .TestGoFiles .XTestGoFiles}}{{.Dir}}{{end}}`
	cmd := exec.CommandContext(c.ctx, goCommand(), append([]string{"list", "-f", format}, c.packages...)...)
	cmd.Dir = c.root
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil, fmt.Errorf("go list: %s", bytes.TrimSpace(exit.Stderr))
	}
	if err != nil {
		return nil, err
	}
	root, err := filepath.Abs(c.root)
	if err != nil {
		return nil, err
	}
	for dir := range strings.Lines(string(out)) {
		if dir, err = filepath.Rel(root, strings.TrimSuffix(dir, "\n")); err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}

// build makes the test binaries in dir, or finds them. A binary that cannot be
// built fails its suite.
func (c config) buildAll(dir string, suites map[string]*suite) {
	var groups [][]*suite // no two suites of a group have binaries of one name
	seen := map[string]int{}
	for _, pkg := range sorted(suites) {
		s := suites[pkg]
		if s.bundle {
			s.binary = filepath.Join(s.root, pkg, "suite.test")
			if _, err := os.Stat(s.binary); err != nil {
				s.failure = "it is not in the bundle"
			}
			s.absolute()
			continue
		}
		i := seen[filepath.Base(pkg)]
		seen[filepath.Base(pkg)]++
		if i == len(groups) {
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], s)
	}
	for i, group := range groups {
		dir := filepath.Join(dir, fmt.Sprint(i))
		if c.buildTests(dir, group) == nil {
			continue
		}
		for _, s := range group { // which of them?
			if err := c.buildTests(dir, []*suite{s}); err != nil {
				s.failure = err.Error()
			}
		}
	}
}

// buildTests makes test binaries, DIR/NAME.test.
func (c config) buildTests(dir string, suites []*suite) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	args := append([]string{"test", "-c", "-vet=off", "-o", dir + "/"}, c.build...)
	for _, s := range suites {
		s.binary = filepath.Join(dir, filepath.Base(s.pkg)+".test")
		s.absolute()
		args = append(args, "./"+s.pkg)
	}
	return c.goTool(nil, args...)
}

// goCommand returns the go command: $GO, else the one in the path.
func goCommand() string {
	if command := os.Getenv("GO"); command != "" {
		return command
	}
	return "go"
}

// goTool runs the go command in the module's root.
func (c config) goTool(env []string, args ...string) error {
	cmd := exec.CommandContext(c.ctx, goCommand(), args...)
	cmd.Dir = c.root
	cmd.Env = append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %s", strings.Join(args[:min(2, len(args))], " "), strings.Join(strings.Fields(string(out)), " "))
	}
	return nil
}

// dir returns the directory where the tests run.
func (s *suite) dir() string { return filepath.Join(s.root, s.pkg) }

// absolute makes the binary's path work in any directory.
func (s *suite) absolute() {
	path, err := filepath.Abs(s.binary)
	if err != nil {
		s.failure = err.Error()
	}
	s.binary = path
}

// names returns all tests of the suite, as it lists them itself.
func (s *suite) names() ([]test, error) {
	cmd := exec.CommandContext(s.ctx, s.binary, "-test.list", ".")
	cmd.Dir = s.dir()
	cmd.Env = environment()
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s -test.list: %w", s.pkg, err)
	}
	var tests []test
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if name := lines.Text(); runs(name) {
			tests = append(tests, test{pkg: s.pkg, name: name})
		}
	}
	return tests, nil
}

// runs reports whether a test binary runs a function of that name when asked for
// its tests.
func runs(name string) bool {
	return !strings.Contains(name, " ") && slices.ContainsFunc([]string{"Test", "Fuzz", "Example"}, func(kind string) bool { return strings.HasPrefix(name, kind) })
}

// take adds the results of some of the tests.
func (s *suite) take(round results, beside []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, one := range round {
		s.results[name] = one
	}
	s.beside = append(s.beside, beside...)
}

// fail says why the whole suite failed, unless it has failed before.
func (s *suite) fail(why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure == "" {
		s.failure = why
	}
}

func sorted(suites map[string]*suite) (packages []string) {
	for pkg := range suites {
		packages = append(packages, pkg)
	}
	slices.Sort(packages)
	return packages
}
