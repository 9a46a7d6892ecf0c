package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// A row is one fault of the table.
type row struct {
	number             int
	fault              string
	software, hardware bool // where it has to be survived: S, G
	tests              []test
	later              string // what is not tested yet
}

// A test is one that a row names.
type test struct {
	pkg   string   // directory in the module
	name  string   // the function; after a slash, how the names of subtests begin
	only  string   // S or G: the only driver that it is for; "" is both
	skips []string // words of the reasons for which it may be skipped
}

// String names the test as the table does.
func (t test) String() string { return t.pkg + " " + t.name }

// function is the name without subtests.
func (t test) function() string {
	name, _, _ := strings.Cut(t.name, "/")
	return name
}

// pattern is for -test.run.
func (t test) pattern() string {
	name, sub, ok := strings.Cut(t.name, "/")
	if !ok {
		return "^" + name + "$"
	}
	return "^" + name + "$/^" + regexp.QuoteMeta(rewritten(sub)) + "([^0-9]|$)"
}

// matches reports whether a result of that name is one of t's.
func (t test) matches(name string) bool {
	function, sub, ok := strings.Cut(t.name, "/")
	if !ok {
		return name == function
	}
	rest, ok := strings.CutPrefix(name, function+"/"+rewritten(sub))
	return ok && (rest == "" || rest[0] < '0' || rest[0] > '9')
}

// rewritten returns what package testing makes of a subtest's name.
func rewritten(name string) string { return strings.ReplaceAll(name, " ", "_") }

// columns of the table.
const (
	numberColumn = iota
	faultColumn
	whereColumn
	happensColumn
	testsColumn
	lastColumn
	columns
)

var rowLine = regexp.MustCompile(`^\| *[0-9]+ *\|`)

// readTable reads the rows of docs/faults-evidence.md: all lines that begin with a
// number in a column.
func readTable(path string) (rows []row, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for i, line := range strings.Split(string(b), "\n") {
		if !rowLine.MatchString(line) {
			continue
		}
		r, err := readRow(line)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
		rows = append(rows, r)
	}
	return rows, nil
}

func readRow(line string) (r row, err error) {
	cells := strings.Split(strings.Trim(line, "| "), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(cells[i])
	}
	if len(cells) != columns {
		return r, fmt.Errorf("%d columns, want %d", len(cells), columns)
	}
	if r.number, err = strconv.Atoi(cells[numberColumn]); err != nil {
		return r, err
	}
	r.fault = cells[faultColumn]
	switch cells[whereColumn] {
	case "S":
		r.software = true
	case "G":
		r.hardware = true
	case "S G":
		r.software, r.hardware = true, true
	default:
		return r, fmt.Errorf("row %d: where: %q; want S, G or S G", r.number, cells[whereColumn])
	}
	if err := r.readTests(cells[testsColumn]); err != nil {
		return r, fmt.Errorf("row %d: %w", r.number, err)
	}
	return r, nil
}

// words of a cell of tests: `package`, a test followed by (S) or (G) and (skip:
// reason), or what is not tested yet.
var words = regexp.MustCompile("`([a-z][a-z0-9/_-]*)`" + `|\b((?:Test|Fuzz)\w+(?:/[^,;()]*[^,;() ])?)|\(skip: ([^)]+)\)|\(([SG])\)|not tested yet: ([^;]+)`)

func (r *row) readTests(cell string) error {
	pkg := ""
	for _, m := range words.FindAllStringSubmatch(cell, -1) {
		switch {
		case m[1] != "":
			pkg = m[1]
		case m[2] != "" && pkg == "":
			return fmt.Errorf("no package for %s", m[2])
		case m[2] != "":
			r.tests = append(r.tests, test{pkg: pkg, name: m[2]})
		case m[3]+m[4] != "" && len(r.tests) == 0:
			return fmt.Errorf("no test before %s", m[0])
		case m[3] != "":
			last := &r.tests[len(r.tests)-1]
			last.skips = append(last.skips, m[3])
		case m[4] != "":
			r.tests[len(r.tests)-1].only = m[4]
		default:
			r.later = m[5]
		}
	}
	if len(r.tests) == 0 && r.later == "" {
		return fmt.Errorf("it names no test")
	}
	return nil
}
