package main

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The lines of docs/benchmarks/README.md between which the table of all bars is.
const (
	beginBars = "<!-- bars: made by make docs -->\n"
	endBars   = "<!-- end of bars -->\n"
)

// otherBars are the bars that no page of docs/benchmarks has, a row each: where they are measured,
// claim, limit, measured, what came of it, and, for those that a page will have, PAGE: and how
// its bar begins. Then the row is left out.
const otherBars = "others.csv"

// A bar is a row of the table of all bars.
type bar struct {
	where, file                     string // for people, and the page, or ""
	claim, limit, measured, verdict string
}

const notMet = "**NOT met**"

// barsOf are the bars of all pages in dir, and the others.
func barsOf(dir string) (all []bar, err error) {
	pages, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(page)
		if name == "README.md" {
			continue
		}
		for i, row := range tableUnder(text, "Bars") {
			if i > 0 {
				all = append(all, bar{strings.TrimSuffix(name, ".md"), name, row[0], row[1], row[2], row[3]})
			}
		}
	}
	others, err := os.ReadFile(filepath.Join(dir, otherBars))
	if err != nil {
		return nil, err
	}
	rows, err := csv.NewReader(bytes.NewReader(others)).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", otherBars, err)
	}
	for _, row := range rows[1:] {
		page, begins, _ := strings.Cut(row[5], ": ")
		if begins != "" && slices.ContainsFunc(all, func(b bar) bool { return b.where == page && strings.HasPrefix(b.claim, begins) }) {
			continue
		}
		all = append(all, bar{row[0], "", row[1], row[2], row[3], row[4]})
	}
	return all, nil
}

// A reason is why bars are not met: a heading, below which a line says of which bars it speaks.
type reason struct {
	anchor string
	file   string // without .md
	claims []string
}

var (
	heading  = regexp.MustCompile(`^#+ (.*)`)
	ofBars   = regexp.MustCompile("^Of ([a-z-]+): (`[^`]+`(?:, `[^`]+`)*)\\.$")
	noAnchor = regexp.MustCompile(`[^a-z0-9 -]`)
)

// reasonsIn are those of a page.
func reasonsIn(text []byte) (all []reason) {
	anchor := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if m := heading.FindStringSubmatch(line); m != nil {
			anchor = strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		}
		if m := ofBars.FindStringSubmatch(line); m != nil {
			r := reason{anchor: anchor, file: m[1]}
			for claim := range strings.SplitSeq(m[2], ", ") {
				r.claims = append(r.claims, strings.Trim(claim, "`"))
			}
			all = append(all, r)
		}
	}
	return all
}

// isOf says whether a reason speaks of a bar: the bar's claim has the parts of one of the
// reason's, which have … between them, in their order.
func (r reason) isOf(b bar) bool {
	if r.file != b.where {
		return false
	}
	for _, claim := range r.claims {
		rest, found := b.claim, true
		for part := range strings.SplitSeq(claim, "…") {
			_, after, ok := strings.Cut(rest, part)
			rest, found = after, found && ok
		}
		if found {
			return true
		}
	}
	return false
}

// withBars puts the table of all bars where a page has it.
func withBars(page string, text []byte, dir string) ([]byte, error) {
	table, err := allBars(dir, text)
	if err != nil {
		return nil, err
	}
	return insertBetween(page, text, beginBars, endBars, table)
}

// allBars makes the table of all bars for the page whose text has the reasons.
func allBars(dir string, text []byte) (string, error) {
	all, err := barsOf(dir)
	if err != nil {
		return "", err
	}
	reasons := reasonsIn(text)
	var b strings.Builder
	b.WriteString("| where | bar | limit | measured | |\n|---|---|---:|---:|---|\n")
	met, missed, unmeasured := 0, 0, 0
	for _, x := range all {
		where := x.where
		if x.file != "" {
			where = fmt.Sprintf("[%s](%s)", x.where, x.file)
		}
		verdict := x.verdict
		switch verdict {
		case "met":
			met++
		case notMet:
			missed++
			verdict += why(reasons, x)
		default:
			unmeasured++
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", where, x.claim, x.limit, x.measured, verdict)
	}
	return fmt.Sprintf("Of %d bars %d are met, %d are not, and %d were not measured.\n\n%s", len(all), met, missed, unmeasured, b.String()), nil
}

// why links to the reason for a bar that is not met.
func why(reasons []reason, b bar) string {
	for _, r := range reasons {
		if r.isOf(b) {
			return fmt.Sprintf(": [why](#%s)", r.anchor)
		}
	}
	return ", and nobody knows why"
}
