package check

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write what doctor says in containers to docs/doctor-runs.md")

// A finding is what doctor's rows say of a container: for each id its status, and a cause.
func findings(t *testing.T, c *container) map[string]string {
	t.Helper()
	all := map[string]string{}
	for line := range strings.Lines(c.out.String()) {
		var row struct{ ID, Status, Cause string }
		require.NoError(t, json.Unmarshal([]byte(line), &row), line)
		if row.ID != "" && row.Status != "OK" {
			all[row.ID] = strings.TrimSpace(row.Status + " " + row.Cause)
		}
	}
	return all
}

// A ward is a container that doctor looks at.
type ward struct {
	heading string // of its section in docs/doctor-runs.md
	mounts  []specs.Mount
	change  func(*specs.Spec) // or nil
	args    []string
	code    int
	finds   map[string]string // what is not OK
}

// doctor runs it in a container of its own, and returns what it printed.
func (p *pod) doctor(w ward) string {
	p.t.Helper()
	run := func(more ...string) *container {
		command := append(append([]string{"/gpufd", "doctor"}, w.args...), more...)
		spec := p.specOf(p.user, append([]specs.Mount{bind(p.volume, volume)}, w.mounts...), command)
		if w.change != nil {
			w.change(spec)
		}
		c := p.begin("doctor", spec, nil)
		require.Equal(p.t, w.code, c.wait(), c.said())
		return c
	}
	require.Equal(p.t, w.finds, findings(p.t, run("--json")), w.heading)
	return run().said()
}

// with returns a map with more in it.
func with(m map[string]string, more map[string]string) map[string]string {
	all := maps.Clone(m)
	maps.Copy(all, more)
	return all
}

// TestDoctor has doctor look at the containers of a pod, at such that lack something, and at two of
// them together. docs/doctor-runs.md is what it says.
func TestDoctor(t *testing.T) {
	p := newMachine(t).newPod(ordinary)
	p.store()
	p.keeper()
	offer := p.start("offer", p.gpu(), "/gpufd", "doctor", "--offer", volume+"/keeper/doctor")
	offer.await("doctor")
	every := map[string]string{ // it is the first process, and has the default seccomp profile
		"pid-namespace": "WARN pid-namespace", "pidfd-getfd": "WARN pidfd-getfd", "mps-directory": "UNKNOWN",
	}
	ours := with(every, map[string]string{"imex-channel": "WARN imex-channel", "libcuda": "UNKNOWN"})
	said := map[string]string{}
	for _, w := range []ward{
		{heading: "An application beside a keeper", mounts: p.gpu(), finds: ours},
		{heading: "The keeper's own container", code: 3, finds: with(every, map[string]string{"driver": "FAIL driver"})},
		{
			heading: "A container without libcuda", mounts: p.gpu(), args: []string{"--driver", "cuda"}, code: 3,
			finds: with(every, map[string]string{"driver": "FAIL no-libcuda"}),
		},
		{
			heading: "A container without /dev/shm", mounts: p.gpu(), code: 3,
			change: func(s *specs.Spec) {
				s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/dev/shm" })
			},
			finds: with(ours, map[string]string{"shm": "FAIL shm"}),
		},
		{
			heading: "Between two containers", mounts: p.gpu(), args: []string{"--with", volume + "/keeper/doctor"}, code: 1,
			finds: map[string]string{
				"pid-equal": "WARN pid-equal", "legacy-memory": "FAIL pid-equal",
				"shm-common": "WARN shm-common", "legacy-event": "FAIL shm-common", "net-common": "UNKNOWN",
			},
		},
	} {
		said[w.heading] = p.doctor(w)
	}
	requireWritten(t, said)
}

// changing is what differs between runs and machines.
var changing = regexp.MustCompile(`GPU-[0-9a-f-]+|pid:\[\d+\]|\d+ (MiB|KiB) are free|open files is \d+|belongs to uid \d+|` +
	`gpufd-doctor-\d+|Tried: .*|this kernel has no Yama|kernel\.yama\.ptrace_scope is \d`)

// requireWritten compares what doctor said with the blocks of docs/doctor-runs.md, or writes them.
func requireWritten(t *testing.T, said map[string]string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", "doctor-runs.md")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	page := string(b)
	for heading, text := range said {
		section := regexp.MustCompile(`(?s)(\n## ` + regexp.QuoteMeta(heading) + "\n.*?\n```text\n)(.*?)(```\n)")
		m := section.FindStringSubmatchIndex(page)
		require.NotNil(t, m, "%s has no section %q", path, heading)
		if *update {
			page = page[:m[4]] + text + page[m[5]:]
			continue
		}
		require.Equal(t, changing.ReplaceAllString(page[m[4]:m[5]], "~"), changing.ReplaceAllString(text, "~"),
			"go test -run TestDoctor ./deploy/check -update writes it")
	}
	if *update {
		page = regexp.MustCompile(`On \d{4}-\d\d-\d\d (\x60cd deploy/check)`).ReplaceAllString(page, fmt.Sprintf("On %s $1", time.Now().Format(time.DateOnly)))
		require.NoError(t, os.WriteFile(path, []byte(page), 0o644))
	}
}
