package check

import (
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
)

// A user is whom a container runs as, and as whom the machine knows it.
type user struct {
	uid, gid uint32
	groups   []uint32
	first    uint32 // the number of the container's root outside
}

// ordinary is the user that the manifests say.
var ordinary = user{uid: 65532, gid: 65532, first: 100_000}

// readOnly is an option of a mount.
const readOnly = "ro"

// bind is a directory of the machine's in a container.
func bind(from, to string, options ...string) specs.Mount {
	return specs.Mount{Type: "bind", Source: from, Destination: to, Options: append([]string{"bind", "nosuid", "nodev"}, options...)}
}

// container is one as a pod under the level "restricted" has it: no user of the machine, no
// capabilities, no new privileges, a root that is read-only, the default seccomp profile of
// Docker and containerd (moby's), and namespaces of its own for all there are but time.
func (m *machine) container(u user, mounts []specs.Mount, env, args []string) *specs.Spec {
	m.t.Helper()
	own := []specs.LinuxIDMapping{{ContainerID: 0, HostID: u.first, Size: 65_536}}
	s := &specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: m.root, Readonly: true},
		Process: &specs.Process{
			Args: args, Env: env, Cwd: "/",
			User:            specs.User{UID: u.uid, GID: u.gid, AdditionalGids: u.groups},
			Capabilities:    &specs.LinuxCapabilities{},
			NoNewPrivileges: true,
		},
		Mounts: append([]specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755", "size=64k"}},
			{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=64m"}},
		}, mounts...),
		Linux: &specs.Linux{
			UIDMappings: own, GIDMappings: own,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.NetworkNamespace},
				{Type: specs.MountNamespace}, {Type: specs.UserNamespace}, {Type: specs.UTSNamespace},
			},
			MaskedPaths:   []string{"/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi"},
			ReadonlyPaths: []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"},
		},
	}
	var err error
	s.Linux.Seccomp, err = seccomp.GetDefaultProfile(s)
	require.NoError(m.t, err)
	return s
}
