package conformance

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

func TestMain(m *testing.M) {
	cutest.RunChild(children)
	code := cutest.Run(m)
	fmt.Println(tally.summary())
	if left := tally.unmet(); code == 0 && wholeRun() && len(left) > 0 {
		fmt.Println("conformance: listed in docs/driver-facts.md and not met:", strings.Join(left, ", "))
		code = 1
	}
	os.Exit(code)
}

// wholeRun reports whether every test was to run.
func wholeRun() bool {
	for _, name := range []string{"test.run", "test.skip", "test.list"} {
		if f := flag.Lookup(name); f != nil && f.Value.String() != "" {
			return false
		}
	}
	return true
}

// tally counts what this run has asked.
var tally counter

// A counter counts checks and remembers the differences that were met.
type counter struct {
	mu             sync.Mutex
	checks, missed int
	met            map[string]difference
}

func (c *counter) count() { c.add(1, 0) }

// skip counts checks that were not made; they are checks nevertheless, so that
// the number is the same everywhere.
func (c *counter) skip(n int) { c.add(n, n) }

func (c *counter) add(checks, missed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.checks += checks
	c.missed += missed
}

// meet remembers a difference, which must be listed just so.
func (c *counter) meet(t testing.TB, d difference) {
	t.Helper()
	if why := d.trouble(listed(t)); why != "" {
		t.Errorf("difference %q: %s", d.id, why)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.met == nil {
		c.met = map[string]difference{}
	}
	c.met[d.id] = d
}

// summary is the line to compare runs by.
func (c *counter) summary() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprintf("conformance: %d checks (%d skipped), %d listed differences, driver %s",
		c.checks, c.missed, len(c.met), cutest.Kind())
}

// unmet lists the differences that no check named.
func (c *counter) unmet() (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	list, err := readDifferences()
	if err != nil {
		return []string{err.Error()}
	}
	for _, d := range list {
		if _, ok := c.met[d.id]; !ok {
			ids = append(ids, d.id)
		}
	}
	return ids
}
