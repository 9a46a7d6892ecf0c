package check

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
)

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
	name   string
	mounts []specs.Mount
	change func(*specs.Spec) // or nil
	args   []string
	code   int
	finds  map[string]string // what is not OK
}

// doctor runs it in a container of its own, and compares what it finds.
func (p *pod) doctor(w ward) {
	p.t.Helper()
	command := append(append([]string{"/gpufd", "doctor"}, w.args...), "--json")
	spec := p.specOf(p.user, append([]specs.Mount{bind(p.volume, volume)}, w.mounts...), command)
	if w.change != nil {
		w.change(spec)
	}
	c := p.begin("doctor", spec, nil)
	require.Equal(p.t, w.code, c.wait(), "%s: %s", w.name, c.said())
	require.Equal(p.t, w.finds, findings(p.t, c), w.name)
}

// with returns a map with more in it.
func with(m map[string]string, more map[string]string) map[string]string {
	all := maps.Clone(m)
	maps.Copy(all, more)
	return all
}

// TestDoctor has doctor look at the containers of a pod, at such that lack something, and at two of
// them together.
func TestDoctor(t *testing.T) {
	p := newMachine(t).newPod(ordinary)
	p.store()
	p.keeper()
	offer := p.start("offer", p.gpu(), "/gpufd", "doctor", "--offer", volume+"/keeper/doctor")
	offer.await("doctor")
	every := map[string]string{ // it is the first process, and has the default seccomp profile
		"pid-namespace": "WARN pid-namespace", "pidfd-getfd": "WARN pidfd-getfd", "mps-directory": "UNKNOWN",
	}
	ours := with(every, map[string]string{"imex-channel": "WARN imex-channel", "libcuda": "UNKNOWN", "checkpoint": "UNKNOWN"})
	for _, w := range []ward{
		{name: "An application beside a keeper", mounts: p.gpu(), finds: ours},
		{name: "The keeper's own container", code: 3, finds: with(every, map[string]string{"driver": "FAIL driver"})},
		{
			name: "A container without libcuda", mounts: p.gpu(), args: []string{"--driver", "cuda"}, code: 3,
			finds: with(every, map[string]string{"driver": "FAIL no-libcuda"}),
		},
		{
			name: "A container without /dev/shm", mounts: p.gpu(), code: 3,
			change: func(s *specs.Spec) {
				s.Mounts = slices.DeleteFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == "/dev/shm" })
			},
			finds: with(ours, map[string]string{"shm": "FAIL shm"}),
		},
		{
			name: "Between two containers", mounts: p.gpu(), args: []string{"--with", volume + "/keeper/doctor"}, code: 1,
			finds: map[string]string{
				"pid-equal": "WARN pid-equal", "legacy-memory": "FAIL pid-equal",
				"shm-common": "WARN shm-common", "legacy-event": "FAIL shm-common", "net-common": "UNKNOWN",
			},
		},
	} {
		p.doctor(w)
	}
}
