package cutest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu"
)

// A ContextOption changes what [Context] returns.
type ContextOption func(*contextOptions)

type contextOptions struct{ unclosed bool }

// AllowUnclosed lets a test leave it to the context to close what was made in it.
func AllowUnclosed() ContextOption { return func(o *contextOptions) { o.unclosed = true } }

// Context returns the primary context of dev, and closes it when t ends. It fails
// t if something made in the context is not closed by then: streams, events,
// modules, graphs, memory. The failure names them and, if the driver is of
// [Open], who made them. Those of other references to the context do not count. A
// test that has already failed or skipped itself is left alone: it may not have
// come to its Close.
func Context(t testing.TB, dev *cu.Device, opts ...ContextOption) *cu.Context {
	t.Helper()
	var o contextOptions
	for _, opt := range opts {
		opt(&o)
	}
	ctx, err := dev.PrimaryContext()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		t.Helper()
		if left := unclosed(ctx); left != "" && !o.unclosed && !t.Failed() && !t.Skipped() {
			t.Errorf("cutest: the test did not close this in its context (AllowUnclosed allows that):\n%s", left)
		}
		if err := ctx.Close(); err != nil {
			t.Error(err)
		}
	})
	return ctx
}

// unclosed describes what was made in ctx and not closed, grouped by kind and by
// the place that made it.
func unclosed(ctx *cu.Context) string {
	type group struct{ kind, stack string }
	counts, bytes := map[group]int{}, map[group]uint64{}
	for _, u := range ctx.Unclosed() {
		g := group{u.Kind, table.Stack(u.Kind, u.Handle)}
		counts[g]++
		bytes[g] += u.Bytes
	}
	var lines []string
	for g, n := range counts {
		line := fmt.Sprintf("  %s: %d", g.kind, n)
		if bytes[g] > 0 {
			line += fmt.Sprintf(", of %d bytes in all", bytes[g])
		}
		if g.stack != "" {
			line += ", made at\n" + g.stack
		}
		lines = append(lines, strings.TrimSuffix(line, "\n")+"\n")
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
