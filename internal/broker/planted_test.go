package broker

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A plant is a fault in the source: text in the place of other text that stands there once. In the
// new text, FAULT is true if this plant is the one.
type plant struct{ file, old, with string }

var plants = map[string]plant{
	"waiters are forgotten":                 {"offer.go", "before, waiting := n.current, n.queue", "before, waiting := n.current, n.queue; if FAULT { waiting = nil }"},
	"a failed offer keeps its queue":        {"offer.go", "if n.makers == 0 {\n", "if n.makers == 0 && !FAULT {\n"},
	"one failed maker ends the wait":        {"offer.go", "if o.claimed {\n\t\tb.doneMaking(o, n)\n", "if o.claimed {\n\t\tb.doneMaking(o, n)\n\t\tif FAULT {\n\t\t\tn.makers = 0\n\t\t}\n"},
	"a name is taken twice":                 {"offer.go", "(n.current != nil && !o.terms.Replaces ||", "(n.current != nil && !o.terms.Replaces && !FAULT ||"},
	"an earlier offer takes the name":       {"offer.go", "n.current.id > o.id {", "n.current.id > o.id && !FAULT {"},
	"a prepared name is taken":              {"offer.go", "n.prepared != nil && n.prepared != o)", "n.prepared != nil && n.prepared != o && !FAULT)"},
	"the data is not announced":             {"offer.go", "if s.state == stateGranted {\n\t\t\ts.state = stateServed", "if s.state == stateGranted && !FAULT {\n\t\t\ts.state = stateServed"},
	"replaced consumers hear nothing":       {"offer.go", "b.tellNewer(o, by)\n\tif o.terms.Grace > 0 {", "if !FAULT { b.tellNewer(o, by) }\n\tif o.terms.Grace > 0 {"},
	"waiters for newer memory sleep on":     {"offer.go", "b.do(Replaced{o.id})\n\tb.wakeBehind(o)", "b.do(Replaced{o.id})\n\tif !FAULT { b.wakeBehind(o) }"},
	"an end leaves waiters for newer":       {"offer.go", "b.unname(o)\n\tb.wakeBehind(o)", "b.unname(o)\n\tif !FAULT { b.wakeBehind(o) }"},
	"an end leaves leases":                  {"offer.go", "b.leave(s, why)", "if !FAULT { b.leave(s, why) }"},
	"a restart gives the name up":           {"offer.go", "case restarting:", "case restarting && !FAULT:"},
	"a replaced offer is withdrawn":         {"offer.go", "case o.replaced:\n\t\treturn Superseded", "case o.replaced && !FAULT:\n\t\treturn Superseded"},
	"leases end otherwise than an offer":    {"offer.go", "b.do(Over{o.id, why, idle})", "b.do(Over{o.id, why, idle}); if FAULT { why = Revoked }"},
	"an end leaves the name":                {"offer.go", "\t\tn.current = nil\n\t}\n", "\t\tif !FAULT {\n\t\t\tn.current = nil\n\t\t}\n\t}\n"},
	"an end leaves what was prepared":       {"offer.go", "if n.prepared == o {", "if n.prepared == o && !FAULT {"},
	"an end leaves offers beside":           {"offer.go", "n.beside = without(n.beside, o)", "if !FAULT { n.beside = without(n.beside, o) }"},
	"the limit of leases does not end":      {"offer.go", "case t.Leases > 0 && o.ended >= t.Leases,", "case t.Leases > 0 && o.ended >= t.Leases && !FAULT,"},
	"a retired offer goes on":               {"offer.go", "o.stands, o.replaced = false, true", "o.stands, o.replaced = FAULT, true"},
	"a replaced offer goes on":              {"offer.go", "o.replaced && active == 0:", "o.replaced && active == 0 && !FAULT:"},
	"no timer of grace":                     {"offer.go", "b.do(Timer{o.id, o.graceAt})", "if !FAULT { b.do(Timer{o.id, o.graceAt}) }"},
	"no timer of idleness":                  {"offer.go", "if o.terms.Idle > 0 && o.places", "if o.terms.Idle > 0 && !FAULT && o.places"},
	"the limit of leases is not kept":       {"session.go", "case o.terms.Leases > 0 && o.places", "case o.terms.Leases > 0 && !FAULT && o.places"},
	"more access than is offered":           {"session.go", "case want.Access > r.Access:", "case want.Access > r.Access && !FAULT:"},
	"other memory is resumed":               {"session.go", "case want.Resume != 0 && !o.isOf(want.Resume):", "case want.Resume != 0 && !o.isOf(want.Resume) && !FAULT:"},
	"cursors for one that takes none":       {"session.go", "case r.CursorSize > 0 &&", "case r.CursorSize > 0 && !FAULT &&"},
	"known memory is granted":               {"session.go", "case o != nil && s.knowsOf(o):", "case o != nil && s.knowsOf(o) && !FAULT:"},
	"the application is not asked":          {"session.go", "case about != nil && b.opts.Consults && about != allowed:", "case about != nil && b.opts.Consults && about != allowed && !FAULT:"},
	"a stranger learns of a name":           {"session.go", "b.do(Consult{s.id, about.id})", "if FAULT && o == nil {\n\t\t\tb.refuse(s, wire.Refuse{Code: wire.RefusedStale})\n\t\t\treturn\n\t\t}\n\t\tb.do(Consult{s.id, about.id})"},
	"a stale answer counts":                 {"session.go", "s.asked == nil || s.asked.id != e.Offer {", "s.asked == nil || s.asked.id != e.Offer && !FAULT {"},
	"an answer counts for another offer":    {"session.go", "s.state, s.asked = stateAsking, about\n", "if FAULT && allowed != nil {\n\t\t\tb.grant(s, about)\n\t\t\treturn\n\t\t}\n\t\ts.state, s.asked = stateAsking, about\n"},
	"a denied session goes on":              {"session.go", "case e.Denied:", "case e.Denied && !FAULT:"},
	"a lease that was not served counts":    {"session.go", "case s.wasServed:\n\t\to.ended++", "case s.wasServed || FAULT:\n\t\to.ended++"},
	"lease numbers are given twice":         {"session.go", "o.number++", "if !FAULT || o.number == 0 { o.number++ }"},
	"an old offer does not hear of newer":   {"offer.go", "o.replaced, o.newer = true, by", "o.replaced = true; if !FAULT { o.newer = by }"},
	"a resumer does not hear of newer":      {"session.go", "if by := b.newerThan(o); by != 0 {", "if by := b.newerThan(o); by != 0 && !FAULT {"},
	"an end is told twice":                  {"session.go", "if s.state == stateOver {\n\t\treturn\n\t}\n\twas", "if s.state == stateOver && !FAULT {\n\t\treturn\n\t}\n\twas"},
	"sessions are not dropped":              {"session.go", "delete(b.sessions, s.id)", "if !FAULT { delete(b.sessions, s.id) }"},
	"a prepared offer is not found":         {"session.go", "return cmp.Or(n.current, n.prepared)\n", "if FAULT {\n\t\treturn n.current\n\t}\n\treturn cmp.Or(n.current, n.prepared)\n"},
	"an early mapping is taken":             {"session.go", "case s.state == stateServed && e.Generation", "case (s.state == stateServed || FAULT) && e.Generation"},
	"a writer detaches":                     {"session.go", "s.lease.gives(s.want) == gpumem.ReadOnly", "(s.lease.gives(s.want) == gpumem.ReadOnly || FAULT)"},
	"a consumer with cursors detaches":      {"session.go", "s.lease.terms.Record.CursorSize == 0\n", "(s.lease.terms.Record.CursorSize == 0 || FAULT)\n"},
	"an unmapped consumer detaches":         {"session.go", "return s.state == stateMapped &&", "return (s.state == stateMapped || FAULT && s.lease != nil) &&"},
	"a detached consumer is ended":          {"session.go", "s != nil && !s.mayDetach() {", "s != nil && (!s.mayDetach() || FAULT) {"},
	"replaced memory is not there again":    {"session.go", "there := o.published ||", "there := o.published && !(o.replaced && FAULT) ||"},
	"memory of an offer that is over":       {"session.go", "o.over || !there", "o.over && !FAULT || !there"},
	"other memory is reattached":            {"session.go", "!o.isOf(s.want.Reattach) {", "!o.isOf(s.want.Reattach) && !FAULT {"},
	"superseded memory is the newest":       {"session.go", "o != nil && b.newerThan(o) == 0", "o != nil && (b.newerThan(o) == 0 || FAULT)"},
	"who reattaches waits for newer":        {"session.go", "return s.want.Reattach == 0 &&", "return (s.want.Reattach == 0 || FAULT) &&"},
	"who reattaches waits for an offer":     {"session.go", "case s.wantsExactly() && o == nil:", "case s.wantsExactly() && o == nil && !FAULT:"},
	"who reattaches needs a place more":     {"session.go", ">= o.terms.Leases && !placed:", ">= o.terms.Leases && (!placed || FAULT):"},
	"who reattaches counts twice":           {"session.go", "if s.from = from; from != nil {", "if s.from = from; from != nil && !FAULT {"},
	"another process takes the place":       {"session.go", "x.isOfProcessOf(s) {", "(x.isOfProcessOf(s) || FAULT) {"},
	"a lease that is over leaves its place": {"session.go", "if x.state != stateOver &&", "if (x.state != stateOver || FAULT) &&"},
	"a place is taken over twice":           {"session.go", "x.heir == nil", "(x.heir == nil || FAULT)"},
	"a place ends with its first lease":     {"session.go", "s.heir.from = s.from\n", "if !FAULT { s.heir.from = s.from }\n"},
	"a place ends with its heir":            {"session.go", "s.from.heir = s.heir\n", "if !FAULT { s.from.heir = s.heir }\n"},
	"a lease that leaves its place counts":  {"session.go", "case s.bequeath():", "case s.bequeath() && !FAULT:"},
	"finished before the last lease":        {"fence.go", "if !o.over || len(o.live) > 0 || b.offers", "if !o.over || len(o.live) > 0 && !FAULT || b.offers"},
	"finished before the last fence":        {"fence.go", "if len(o.writers) > 0 {\n\t\treturn", "if len(o.writers) > 0 && !FAULT {\n\t\treturn"},
	"no fence for a writer":                 {"fence.go", "o.writers = append(o.writers, writer{s.process, s.peer})", "if !FAULT { o.writers = append(o.writers, writer{s.process, s.peer}) }"},
	"a word fences as a death does":         {"fence.go", "want == Released && e.Released {", "(want == Released || FAULT) && e.Released {"},
	"an unknown process is trusted":         {"fence.go", "o.doubts(s.peer, s.doubt)", "if !FAULT { o.doubts(s.peer, s.doubt) }"},
	"a lost process is trusted":             {"fence.go", "if doubt != \"\" {\n", "if doubt != \"\" && !FAULT {\n"},
	"deaths are not noticed":                {"fence.go", "b.settle(e.Process, \"\")", "if !FAULT { b.settle(e.Process, \"\") }"},
	"giving up does not end the wait":       {"fence.go", "o.gaveUp = true", "o.gaveUp = !FAULT"},
	"earlier writers are ignored":           {"fence.go", "if x != o && b.isEarlier(x) {", "if x != o && b.isEarlier(x) && !FAULT {"},
	"unsure earlier writers are ignored":    {"fence.go", "case len(finished.unsure.List) > 0:", "case len(finished.unsure.List) > 0 && !FAULT:"},
	"waiting for earlier has no end":        {"fence.go", "b.unblock(b.offers[waiting], o)", "if !FAULT { b.unblock(b.offers[waiting], o) }"},
	"processes are not dropped":             {"fence.go", "if p.users--; p.users == 0 {", "if p.users--; p.users == 0 && !FAULT {"},
	"Close leaves waiters":                  {"broker.go", "if s := b.sessions[id]; s.lease == nil {", "if s := b.sessions[id]; s.lease == nil && !FAULT {"},
	"Close leaves offers":                   {"broker.go", "if o := b.offers[id]; !o.over {", "if o := b.offers[id]; !o.over && !FAULT {"},
	"progress without end":                  {"broker.go", "if n.total == 0 || b.now.Sub(s.told) < ProgressPause {", "if n.total == 0 && !FAULT || b.now.Sub(s.told) < ProgressPause && !FAULT {"},
}

// The model finds each fault that is planted in the broker.
func TestModelFindsPlantedFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("needs the Go toolchain, and a minute")
	}
	program := filepath.Join(t.TempDir(), "broker.test")
	build := exec.Command("go", "test", "-c", "-vet=off", "-overlay", overlay(t), "-o", program, ".")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name := range plants {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(program, "-test.run", "^TestModel$")
			cmd.Env = append(os.Environ(), "BROKER_FAULT="+name)
			out, err := cmd.CombinedOutput()
			require.Error(t, err, "the model does not find it")
			require.Contains(t, string(out), "seed ", "it fails otherwise")
		})
	}
}

// overlay returns the file that tells the compiler of the faulty sources.
func overlay(t *testing.T) string {
	dir, replace := t.TempDir(), map[string]string{}
	here, err := os.Getwd()
	require.NoError(t, err)
	write := func(file, text string) string {
		path := filepath.Join(dir, file)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	for _, file := range []string{"broker.go", "fence.go", "offer.go", "session.go"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		replace[filepath.Join(here, file)] = write(file, faulty(t, file, string(text)))
	}
	replace[filepath.Join(here, "planted.go")] = write("planted.go", "package broker\n\nimport \"os\"\n\nvar planted = os.Getenv(\"BROKER_FAULT\")\n")
	b, err := json.Marshal(map[string]any{"Replace": replace})
	require.NoError(t, err)
	return write("overlay.json", string(b))
}

// faulty returns the text of a source with all its plants.
func faulty(t *testing.T, file, text string) string {
	var pairs []string
	for name, p := range plants {
		if p.file != file {
			continue
		}
		require.Equal(t, 1, strings.Count(text, p.old), "%s: %s has %q once", name, file, p.old)
		pairs = append(pairs, p.old, strings.ReplaceAll(p.with, "FAULT", fmt.Sprintf("(planted == %q)", name)))
	}
	whole := strings.NewReplacer(pairs...).Replace(text)
	for i := 0; i < len(pairs); i += 2 {
		require.True(t, strings.Contains(whole, pairs[i+1]), "another plant stands where %q does", pairs[i])
	}
	return whole
}
