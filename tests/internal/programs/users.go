package programs

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/stretchr/testify/require"
)

// Another user and its group.
const (
	OtherUID = 12345
	OtherGID = 12346
)

// OpenScene is a scene that other users can come to; they cannot change anything
// there.
func OpenScene(t *testing.T) *Scene {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to start a process of another user")
	}
	s := NewScene(t)
	require.NoError(t, os.Chmod(s.Dir, 0o711))
	return s
}

// StartAs starts a program on the scene's socket as attr says. It runs the binary
// by a descriptor, because another user may not reach it by its path, and not from
// here.
func (s *Scene) StartAs(attr syscall.SysProcAttr, program string, args ...string) *Process {
	s.T.Helper()
	return s.StartAsIn(attr, softDirOf(s.T, attr), program, args...)
}

// StartAsIn is startAs with a directory for the software driver.
func (s *Scene) StartAsIn(attr syscall.SysProcAttr, softDir, program string, args ...string) *Process {
	s.T.Helper()
	binary, err := os.Open(ProgramPath(s.T, program))
	require.NoError(s.T, err)
	defer binary.Close()
	cmd := exec.Command("/proc/self/fd/3", append([]string{"-socket", s.Socket}, args...)...)
	cmd.ExtraFiles, cmd.Dir, cmd.SysProcAttr = []*os.File{binary}, "/", &attr
	return StartCommand(s.T, program, cmd, []string{"GPUFD_DRIVER=" + KindName(), "GPUFD_SOFT_DIR=" + softDir})
}

// softDirOf is a directory for the software driver of a process of another user: its
// own, as the driver wants it, with the identity of this one's, so that it is the
// same machine. The memory itself comes with the descriptors.
func softDirOf(t testing.TB, attr syscall.SysProcAttr) string {
	t.Helper()
	mine := os.Getenv("GPUFD_SOFT_DIR")
	uid := hostUID(attr)
	if cutest.Kind() != cu.Soft || uid == os.Geteuid() {
		return mine
	}
	cutest.Device(t) // makes the identity
	dir, err := os.MkdirTemp("", "gpufd-soft-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	identity, err := os.ReadFile(filepath.Join(mine, "machine"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "machine"), identity, 0o600))
	require.NoError(t, os.Chown(filepath.Join(dir, "machine"), uid, -1))
	require.NoError(t, os.Chown(dir, uid, -1))
	return dir
}

// hostUID is the uid, as it is here, that a process with attr has.
func hostUID(attr syscall.SysProcAttr) int {
	switch {
	case len(attr.UidMappings) > 0:
		return attr.UidMappings[0].HostID
	case attr.Credential != nil:
		return int(attr.Credential.Uid)
	}
	return os.Geteuid()
}
