package check

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
)

// outside starts gpufd as a user of the machine who is in no user namespace, with devices and the volume read-only.
func (p *pod) outside(uid uint32, args ...string) *container {
	p.t.Helper()
	u := user{uid: uid, gid: uid}
	spec := p.specOf(u, []specs.Mount{bind(p.volume, volume, readOnly), bind(p.devicesOf(u), "/devices")}, append([]string{"/gpufd"}, args...))
	spec.Linux.UIDMappings, spec.Linux.GIDMappings, spec.Linux.Namespaces = nil, nil, []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.PIDNamespace}}
	return p.begin(args[0], spec, nil)
}

// A user who runs containers without root is 0 in them. So a keeper in such a container knows that user by 0, whatever
// the number outside, and nobody else of the machine. The keeper's directory has to let the user through.
func TestRootless(t *testing.T) {
	m := newMachine(t)
	m.write("rootless.json", []byte(`{"rules": [{"uid": 0, "allow": ["read"]}]}`))
	p := m.newPod(ordinary)
	p.store()
	keeper := p.keeper("--policy", "/rootless.json")
	p.does("put", name, "/weights")

	c := p.outside(ordinary.first, "get", name, "--verify")
	require.Equal(t, 1, c.wait())
	require.Contains(t, c.said(), "permission denied")

	require.NoError(t, os.Chmod(filepath.Join(p.volume, "keeper"), 0o755))
	c = p.outside(ordinary.first, "get", name, "--verify")
	require.Zero(t, c.wait(), c.said())
	require.Contains(t, c.said(), "as its writer said")

	c = p.outside(1000, "get", name, "--verify")
	require.Equal(t, 1, c.wait())
	require.Contains(t, c.said(), "this keeper's policy names neither your uid nor your gid")
	require.NotContains(t, keeper.said(), "panic")
}
