package gpufd

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// A reader of another user, whom the policy names, attaches to the keeper of the directory's
// owner and verifies; a user who is not named is told why not.
func TestReaderOfAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root starts processes of other users")
	}
	const reader, stranger = 1234, 4321
	own := filepath.Join(t.TempDir(), "soft")
	u := newUser(t, "GPUFD_SOFT_DIR="+own)
	require.NoError(t, os.Chmod(u.dir, 0o711))
	program := ok(os.ReadFile(gpufd))(t)
	require.NoError(t, os.WriteFile(filepath.Join(u.dir, "gpufd"), program, 0o755))
	u.write("policy", []byte(`{"rules":[{"uid":1234,"prefix":"w/","allow":["read"]}]}`))
	u.write("a", data(100_000, 1))
	u.keeper("--policy", "policy")
	u.does("put", "w/a", "a")
	u.does("put", "v", "a")

	theirs := filepath.Join(u.dir, "theirs") // a software driver of theirs, of the same devices
	require.NoError(t, os.Mkdir(theirs, 0o700))
	machine := ok(os.ReadFile(filepath.Join(own, "machine")))(t)
	require.NoError(t, os.WriteFile(filepath.Join(theirs, "machine"), machine, 0o600))
	require.NoError(t, os.Chown(theirs, reader, reader))
	require.NoError(t, os.Chown(filepath.Join(theirs, "machine"), reader, reader))
	as := func(uid uint32, args ...string) (string, error) {
		cmd := command(u, args...)
		cmd.Path, cmd.Dir = filepath.Join(u.dir, "gpufd"), "/"
		cmd.Env = append(cmd.Env, "GPUFD_SOFT_DIR="+theirs)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := as(reader, "get", "w/a", "--verify")
	require.NoError(t, err, out)
	require.Contains(t, out, "as its writer said")
	out, err = as(reader, "get", "v", "--verify")
	require.Error(t, err)
	require.Contains(t, out, "the keeper's policy has no rule for uid 1234")
	out, err = as(reader, "rm", "w/a")
	require.Error(t, err)
	require.Contains(t, out, "may not remove")
	out, err = as(stranger, "ls")
	require.Error(t, err)
	require.Contains(t, out, "names neither your uid nor your gid")
}
