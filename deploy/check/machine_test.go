package check

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// long is how long a test waits for what should happen soon.
const long = time.Minute

// A machine has runc, and a root file system with gpufd in it.
type machine struct {
	t     *testing.T
	state string // runc's directory for its containers
	root  string // containers' file system, which they cannot write to
	dir   string
	names int
}

// newMachine skips the test where runc cannot run a container of ours.
func newMachine(t *testing.T) *machine {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpufd-runc-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755)) // root of a container is nobody here
	m := &machine{t: t, dir: dir, state: filepath.Join(dir, "state"), root: filepath.Join(dir, "root")}
	if why := m.lacks(); why != nil {
		if slices.Contains(strings.Split(os.Getenv("GPUFD_REQUIRE"), ","), "runc") {
			t.Fatalf("GPUFD_REQUIRE lists runc, but: %v", why)
		}
		t.Skipf("runc cannot run a container here: %v", why)
	}
	m.install()
	return m
}

// lacks says why runc cannot run a container, with all that the tests want of one.
func (m *machine) lacks() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("this is uid %d, and root may", os.Geteuid())
	}
	if _, err := exec.LookPath("runc"); err != nil {
		return err
	}
	for _, mount := range []string{"proc", "dev", "devices", "models", "tmp", volume} {
		require.NoError(m.t, os.MkdirAll(filepath.Join(m.root, mount), 0o755))
	}
	m.library("/bin/true")
	pod := m.newPod(ordinary)
	c := pod.start("trial", nil, "/bin/true")
	if code := c.wait(); code != 0 {
		return fmt.Errorf("exit code %d: %s", code, c.said())
	}
	return nil
}

// install puts gpufd and something to keep into the root.
func (m *machine) install() {
	m.t.Helper()
	program, err := os.ReadFile(gpufd)
	require.NoError(m.t, err)
	m.write("gpufd", program)
	m.library(gpufd)
	m.write("weights", bytes.Repeat([]byte("weights "), 1<<17))
	m.write("large", make([]byte, 7<<20))
	policy, err := os.ReadFile(filepath.Join(manifests, "daemonset", "policy.json"))
	require.NoError(m.t, err)
	m.write("policy.json", policy)
}

// library copies a program, under its own path, and the libraries that it is linked to.
func (m *machine) library(program string) {
	m.t.Helper()
	out, err := exec.Command("ldd", program).CombinedOutput()
	require.NoError(m.t, err, "%s", out)
	for _, word := range append(strings.Fields(string(out)), program) {
		if !filepath.IsAbs(word) {
			continue
		}
		content, err := os.ReadFile(word)
		require.NoError(m.t, err)
		m.write(word, content)
	}
}

// write makes a file that all users of containers may read and run.
func (m *machine) write(name string, content []byte) {
	m.t.Helper()
	path := filepath.Join(m.root, name)
	require.NoError(m.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(m.t, os.WriteFile(path, content, 0o755))
}

// runc runs a command of runc's and returns what it printed.
func (m *machine) runc(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), long)
	defer cancel()
	out, err := exec.CommandContext(ctx, "runc", append([]string{"--root", m.state}, args...)...).CombinedOutput()
	return string(out), err
}
