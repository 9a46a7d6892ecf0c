package check

import (
	"encoding/json"
	"strings"
	"testing"

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

// doctor runs it in a container of its own, and returns what was not OK.
func (p *pod) doctor(code int, gpu bool, args ...string) map[string]string {
	p.t.Helper()
	mounts := p.gpu()
	if !gpu {
		mounts = nil
	}
	command := append([]string{"/gpufd", "doctor"}, args...)
	people := p.start("doctor", mounts, command...)
	require.Equal(p.t, code, people.wait(), people.said())
	p.t.Logf("%s, exit code %d:\n%s", strings.Join(command, " "), code, people.said())
	c := p.start("doctor", mounts, append(command, "--json")...)
	require.Equal(p.t, code, c.wait(), c.said())
	return findings(p.t, c)
}

// TestDoctor has doctor look at the containers of a pod, and at two of them together. Its
// output is that of docs/doctor-runs.md.
func TestDoctor(t *testing.T) {
	p := newMachine(t).newPod(ordinary)
	p.store()
	p.keeper()
	container := map[string]string{
		"pid-namespace": "WARN pid-namespace", "pidfd-getfd": "WARN pidfd-getfd", // the first process, and the default seccomp profile
		"imex-channel": "WARN imex-channel", "libcuda": "UNKNOWN", "mps-directory": "UNKNOWN",
	}
	require.Equal(t, container, p.doctor(0, true), "an application's")

	delete(container, "libcuda") // is not looked at
	delete(container, "imex-channel")
	container["driver"] = "FAIL driver"
	require.Equal(t, container, p.doctor(3, false), "the keeper's, which has no GPU")

	offer := p.start("offer", p.gpu(), "/gpufd", "doctor", "--offer", volume+"/keeper/doctor")
	offer.await("doctor")
	t.Log("beside: /gpufd doctor --offer " + volume + "/keeper/doctor")
	require.Equal(t, map[string]string{
		"pid-equal": "WARN pid-equal", "legacy-memory": "FAIL pid-equal",
		"shm-common": "WARN shm-common", "legacy-event": "FAIL shm-common", "net-common": "UNKNOWN",
	}, p.doctor(1, true, "--with", volume+"/keeper/doctor"), "of two containers: descriptors work, legacy IPC does not")
}
