package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// factsPath is the document with the facts and the list, from this directory.
const factsPath = "../../docs/driver-facts.md"

// listHeading is the section with the list.
const listHeading = "## Where the software driver differs"

// A difference is a check that the two drivers answer differently.
type difference struct{ id, cuda, soft, why string }

// trouble says what is wrong with a difference that a check names, or "".
func (d difference) trouble(list []difference) string {
	if d.cuda == d.soft {
		return "both drivers answer " + d.cuda
	}
	for _, l := range list {
		if l.id != d.id {
			continue
		}
		if l.cuda != d.cuda || l.soft != d.soft {
			return fmt.Sprintf("listed with %s and %s, checked for %s and %s", l.cuda, l.soft, d.cuda, d.soft)
		}
		return ""
	}
	return "not listed in " + factsPath
}

var readDifferences = sync.OnceValues(func() ([]difference, error) {
	b, err := os.ReadFile(factsPath)
	if err != nil {
		return nil, err
	}
	return parseDifferences(string(b))
})

// parseDifferences reads the first table of the section: id, what is asked,
// what the H200 answers, what the software driver answers, why.
func parseDifferences(doc string) (list []difference, err error) {
	_, section, found := strings.Cut(doc, listHeading)
	if !found {
		return nil, fmt.Errorf("no section %q", listHeading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		if len(cells) != 5 {
			return nil, fmt.Errorf("a row with %d cells: %s", len(cells), line)
		}
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		list = append(list, difference{id: cells[0], cuda: cells[2], soft: cells[3], why: cells[4]})
	}
	return list, nil
}

func listed(t testing.TB) []difference {
	t.Helper()
	list, err := readDifferences()
	require.NoError(t, err)
	return list
}

// The list can be read, names nothing twice and argues every row. That each
// row is met by a check, with these answers, the end of a whole run tells.
func TestListOfDifferences(t *testing.T) {
	seen := map[string]bool{}
	for _, d := range listed(t) {
		require.False(t, seen[d.id], "%s is listed twice", d.id)
		seen[d.id] = true
		require.NotEqual(t, d.cuda, d.soft, d.id)
		require.NotEmpty(t, d.why, "%s: why?", d.id)
	}
}

// Every way in which list and checks can disagree is found.
func TestListCanFail(t *testing.T) {
	const doc = "# x\n" + listHeading + "\n\n| id | asked | H200 | software driver | why |\n|---|---|---|---|---|\n" +
		"| `a` | x | `A` | `B` | reason |\n| `c` | y | crashes | `C` | reason |\n\n## More\n| `d` | | | | |\n"
	list, err := parseDifferences(doc)
	require.NoError(t, err)
	require.Equal(t, []difference{{"a", "A", "B", "reason"}, {"c", "crashes", "C", "reason"}}, list)
	require.Empty(t, difference{id: "a", cuda: "A", soft: "B"}.trouble(list))
	require.Contains(t, difference{id: "a", cuda: "A", soft: "C"}.trouble(list), "listed with A and B")
	require.Contains(t, difference{id: "b", cuda: "A", soft: "B"}.trouble(list), "not listed")
	require.Contains(t, difference{id: "a", cuda: "A", soft: "A"}.trouble(list), "both")

	_, err = parseDifferences("# x\n")
	require.ErrorContains(t, err, "no section")
	_, err = parseDifferences(listHeading + "\n| `a` | b |\n")
	require.ErrorContains(t, err, "2 cells")

	met := counter{met: map[string]difference{}}
	for _, d := range listed(t) {
		require.Contains(t, met.unmet(), d.id)
		met.met[d.id] = d
	}
	require.Empty(t, met.unmet())
}

// A row whose answer is left to chance fails where nothing was wrong, and where its
// child did not come to ask.
func TestWhatVariesCanFail(t *testing.T) {
	for _, a := range []any{crashes, hangs, destroyed, noHandle} {
		require.True(t, answers(varies, a), a)
	}
	require.False(t, answers(varies, success))
	notAsked := end(soon(t), errors.New("exit status 3"), "CUDA_ERROR_OUT_OF_MEMORY")
	require.False(t, answers(varies, notAsked), notAsked)
}

// elsewhere lists the facts that no test of this package repeats, and what does.
var elsewhere = map[string]string{
	"D17": "takes a CUDA runtime",
	"D18": "takes containers: cu TestFault46_IPCBetweenNamespaces, tests TestFault46_LegacyNamespaces",
	"D22": "a calling convention: tests of cu/sys",
	"C44": "takes processes that are checkpointed: cu TestCheckpoint, TestCheckpointLosesWhoHasMapped",
	"C37": "times of whole runs",
	"C38": "bench/c/hostfunc.c",
	"C39": "cu TestStreamCallsOfLostContextsAreForgotten, bench/c/hostfunc.c",
}

// TestFactsHaveTests: each number of the document has a test here or elsewhere, and each test a number.
func TestFactsHaveTests(t *testing.T) {
	facts, err := os.ReadFile(factsPath)
	require.NoError(t, err)
	tests, err := exec.CommandContext(soon(t), "/proc/self/exe", "-test.list", "^Test[CD][0-9]").Output()
	require.NoError(t, err)
	tested := map[string]bool{}
	for name := range strings.FieldsSeq(string(tests)) {
		if number, _, ok := strings.Cut(strings.TrimPrefix(name, "Test"), "_"); ok && strings.HasPrefix(name, "Test") {
			tested[number] = true
		}
	}
	stated := map[string]bool{}
	for _, m := range regexp.MustCompile(`\b[CD]\d+[ab]?\b`).FindAllString(string(facts), -1) {
		stated[m] = true
		require.True(t, tested[m] || elsewhere[m] != "", "no test of %s", m)
	}
	for number := range tested {
		require.True(t, stated[number], "%s does not state %s", factsPath, number)
	}
}
