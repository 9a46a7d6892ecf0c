package check

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// requireCommand says that gpufd takes a command line. The fd store, which has no flags, takes
// the path of its socket.
func requireCommand(t *testing.T, args ...string) {
	t.Helper()
	if args[0] == "fd-store" {
		require.Len(t, args, 2)
		require.True(t, filepath.IsAbs(args[1]) && strings.HasSuffix(args[1], ".sock.store"), args[1])
		return
	}
	out, err := exec.Command(gpufd, append(slices.Clone(args), "--help")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "gpufd "+args[0], "help of the command")
}

// TestCommands: what containers and units run are command lines of this gpufd, and the keeper
// takes the policy.
func TestCommands(t *testing.T) {
	for _, dir := range []string{"pod", "engines", "daemonset", "reader"} {
		spec := template(t, build(t, filepath.Join(manifests, dir))).Spec
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			requireCommand(t, c.Args...)
		}
	}
	for name, text := range units(t) {
		line := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/gpufd (.*)$`).FindStringSubmatch(text)
		require.NotNil(t, line, name)
		requireCommand(t, strings.Fields(line[1])...)
	}
	policy := filepath.Join(manifests, "daemonset", "policy.json")
	out, err := exec.Command(gpufd, "keeper", "--policy", policy, "--socket", "/no/such/directory/keeper.sock").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "no such directory", "the policy is read before, and was taken")
}

// units are the services of systemd, by the names of their files.
func units(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "systemd", "*.service"))
	require.NoError(t, err)
	require.Len(t, files, 2)
	all := map[string]string{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		all[filepath.Base(f)] = string(text)
	}
	return all
}

// TestUnits has systemd read the units, with this gpufd in the place of that in /usr/bin, and say
// how much of the machine is open to them.
func TestUnits(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skipf("systemd is not installed here: %v", err)
	}
	var paths []string
	dir := t.TempDir()
	for name, text := range units(t) {
		require.Equal(t, 1, strings.Count(text, "/usr/bin/gpufd"))
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(strings.Replace(text, "/usr/bin/gpufd", gpufd, 1)), 0o600))
		paths = append(paths, path)
	}
	out, err := exec.Command(analyze, append([]string{"verify", "--man=no"}, paths...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out), "what it does not know it warns of")
	out, err = exec.Command(analyze, append([]string{"security", "--offline=yes", "--threshold=20", "--no-pager"}, paths...)...).CombinedOutput()
	require.NoError(t, err, "%s", out) // 20 of 100
}
