package check

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

// Paths of the shared volume in containers, and of the keeper's socket in a directory within; and
// the name under which something is kept.
const (
	volume = "/run/gpufd"
	socket = volume + "/keeper/keeper.sock"
	name   = "llama"
)

// A pod is containers that share a volume and the devices of the software driver.
type pod struct {
	*machine
	spec    corev1.PodSpec // of deploy/kubernetes/pod
	user    user
	volume  string
	devices string // on tmpfs; for containers with a GPU
}

// newPod has a volume as an emptyDir is: everybody may write there.
func (m *machine) newPod(u user) *pod {
	m.t.Helper()
	p := &pod{machine: m, user: u, volume: m.directory(m.dir, 0o777, u.first, u.first)}
	p.spec = template(m.t, build(m.t, filepath.Join(manifests, "pod"))).Spec
	require.Equal(m.t, []int64{int64(u.uid), int64(u.gid)}, []int64{*p.spec.SecurityContext.RunAsUser, *p.spec.SecurityContext.RunAsGroup})
	p.devices = m.directory("/dev/shm", 0o700, u.first+u.uid, u.first+u.gid)
	return p
}

// directory makes one that the test removes.
func (m *machine) directory(in string, mode, uid, gid uint32) string {
	m.t.Helper()
	dir, err := os.MkdirTemp(in, "gpufd-volume-")
	require.NoError(m.t, err)
	m.t.Cleanup(func() { require.NoError(m.t, os.RemoveAll(dir)) })
	require.NoError(m.t, os.Chown(dir, int(uid), int(gid)))
	require.NoError(m.t, unix.Chmod(dir, mode))
	return dir
}

// command is what a container of the manifest runs, with the volume where it has it.
func (p *pod) command(of string) []string {
	p.t.Helper()
	for _, c := range slices.Concat(p.spec.InitContainers, p.spec.Containers) {
		if c.Name == of {
			require.Equal(p.t, volume, c.VolumeMounts[0].MountPath)
			return append([]string{"/gpufd"}, c.Args...)
		}
	}
	p.t.Fatalf("the manifest has no container %s", of)
	return nil
}

// devicesOf is a directory in which another user of the software driver has the same devices:
// their identity, without their memory.
func (p *pod) devicesOf(u user) string {
	p.t.Helper()
	const identity = "machine"
	dir := p.directory("/dev/shm", 0o700, u.first+u.uid, u.first+u.gid)
	text, err := os.ReadFile(filepath.Join(p.devices, identity))
	require.NoError(p.t, err)
	require.NoError(p.t, os.WriteFile(filepath.Join(dir, identity), text, 0o600))
	require.NoError(p.t, os.Chown(filepath.Join(dir, identity), int(u.first+u.uid), int(u.first+u.gid)))
	return dir
}

// start runs a container of the pod's user with the volume, and mounts beside it.
func (p *pod) start(what string, mounts []specs.Mount, args ...string) *container {
	p.t.Helper()
	return p.startAs(p.user, what, append([]specs.Mount{bind(p.volume, volume)}, mounts...), args...)
}

func (p *pod) startAs(u user, what string, mounts []specs.Mount, args ...string) *container {
	p.t.Helper()
	return p.begin(what, p.specOf(u, mounts, args), nil)
}

func (p *pod) specOf(u user, mounts []specs.Mount, args []string) *specs.Spec {
	p.t.Helper()
	env := []string{"GPUFD_DRIVER=soft", "GPUFD_SOFT_DIR=/devices", "GPUFD_SOFT_DEVICES=1", "GPUFD_SOFT_MEMORY=8MiB", "GPUFD_SOCKET=" + socket}
	return p.container(u, mounts, env, args)
}

// gpu is what a container needs to have the devices.
func (p *pod) gpu() []specs.Mount { return []specs.Mount{bind(p.devices, "/devices")} }

// store runs the fd store, without a GPU.
func (p *pod) store() *container {
	p.t.Helper()
	return p.start("store", nil, p.command("fd-store")...)
}

// keeper runs the keeper until it serves, without a GPU.
func (p *pod) keeper(args ...string) *container {
	p.t.Helper()
	k := p.start("keeper", nil, append(append(p.command("keeper"), "--json"), args...)...)
	k.await(`"serving"`)
	return k
}

// reader verifies what is kept, computing on a device, and goes on with the memory mapped.
func (p *pod) reader() *container {
	p.t.Helper()
	r := p.start("reader", p.gpu(), append(p.command("application"), "--json")...)
	r.await(`"holding"`)
	return r
}

// does runs gpufd in a container to its end, and returns the last object that it printed.
func (p *pod) does(args ...string) map[string]any {
	p.t.Helper()
	c := p.start(args[0], p.gpu(), append([]string{"/gpufd", "--json"}, args...)...)
	require.Zero(p.t, c.wait(), c.said())
	lines := strings.Split(strings.TrimSpace(c.out.String()), "\n")
	var o map[string]any
	require.NoError(p.t, json.Unmarshal([]byte(lines[len(lines)-1]), &o), c.said())
	return o
}

// verified says that a new reader finds the version, and its bytes as they were put.
func (p *pod) verified(version int) {
	p.t.Helper()
	o := p.does("get", name, "--verify")
	require.Equal(p.t, []any{true, float64(version)}, []any{o["verified"], o["version"]})
}

// held waits until so many have the current version and no lease is lost.
func (p *pod) held(n int) {
	p.t.Helper()
	var last map[string]any
	says := func() string { return mustJSON(last) }
	p.until(says, func() (bool, error) {
		last = p.does("stat", name)
		holders := last["holders"].([]any)
		for _, h := range holders {
			h := h.(map[string]any)
			require.Equal(p.t, []any{0.0, float64(p.user.uid)}, []any{h["pid"], h["uid"]}, "a PID of another namespace")
			if h["lost"] == true {
				return false, nil
			}
		}
		return len(holders) == n, nil
	})
}

func mustJSON(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// requireConfined says that containers are what a pod's are: unprivileged, and apart.
func requireConfined(t *testing.T, all ...*container) {
	t.Helper()
	requireUnprivileged(t, ordinary, all...)
	requireApart(t, []string{"pid", "ipc", "net", "mnt", "user", "uts"}, all...)
}

// requireUnprivileged says that containers run as a user without capabilities, and get no more.
func requireUnprivileged(t *testing.T, u user, all ...*container) {
	t.Helper()
	uid := fmt.Sprint(u.first + u.uid)
	for _, c := range all {
		require.Equal(t, strings.Join([]string{uid, uid, uid, uid}, " "), c.status("Uid"))
		for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
			require.Equal(t, strings.Repeat("0", 16), c.status(set), set)
		}
		require.Equal(t, "1", c.status("NoNewPrivs"))
		require.Equal(t, "2", c.status("Seccomp"), "a filter")
	}
}

// requireApart says that containers share no namespace of these kinds with this process or one another.
func requireApart(t *testing.T, kinds []string, all ...*container) {
	t.Helper()
	for _, kind := range kinds {
		own, err := os.Readlink("/proc/self/ns/" + kind)
		require.NoError(t, err)
		seen := map[string]bool{own: true}
		for _, c := range all {
			require.False(t, seen[c.namespace(kind)], "%s shares its %s namespace", c.id, kind)
			seen[c.namespace(kind)] = true
		}
	}
}

// TestPod is the pod of deploy/kubernetes/pod without Kubernetes: each of its containers is
// killed and started again, and what the others see is asked for.
func TestPod(t *testing.T) {
	p := newMachine(t).newPod(ordinary)
	store, keeper := p.store(), p.keeper()
	require.Equal(t, 1.0, p.does("put", name, "/weights")["version"])
	first, second := p.reader(), p.reader()
	requireConfined(t, store, keeper, first, second)
	require.Equal(t, "serving\n", keeper.page("/healthz"), "the probe")
	require.Contains(t, keeper.page("/metrics"), "gpufd_keeper_names 1\n")
	p.held(2)

	t.Log("a reader is killed: the other goes on, and one that is started again has the memory")
	first.kill()
	p.held(1)
	first = p.reader()
	p.held(2)

	t.Log("the keeper is killed: readers go on, and have their leases again with the next one")
	keeper.kill()
	keeper = p.keeper()
	require.Contains(t, keeper.out.String(), `"names":1`)
	p.held(2)
	p.verified(1)

	t.Log("the fd store is killed: the keeper gives the next one everything")
	store.kill()
	keeper.await("the fd store has died")
	require.Equal(t, "serving, without an fd store\n", keeper.page("/healthz"), "so the kubelet leaves it alone")
	store = p.store()
	keeper.await("holds everything")
	keeper.kill()
	p.keeper()
	p.held(2)
	p.verified(1)

	t.Log("a writer is killed while it waits for room: the version before stays")
	writer := p.start("put", p.gpu(), "/gpufd", "put", name, "/large", "--timeout", "10m")
	p.until(writer.said, func() (bool, error) { return p.does("stat", name)["reserved_bytes"] != 0.0, nil })
	writer.kill()
	p.until(writer.said, func() (bool, error) { return p.does("stat", name)["reserved_bytes"] == 0.0, nil })
	p.held(2)
	p.verified(1)

	require.Equal(t, 2.0, p.does("put", name, "/weights")["version"])
	p.verified(2)
	for _, r := range []*container{first, second} {
		r.kill()
	}
	p.held(0)
	p.verified(2)
	require.NotContains(t, store.said(), "panic")
}

// A volume with an fsGroup belongs to that group, which may write there, and so do directories
// within. Who has the volume read-only can connect, and cannot put another socket there.
func TestVolumeOfAGroup(t *testing.T) {
	u := ordinary
	u.groups = []uint32{2000}
	p := newMachine(t).newPod(u)
	p.volume = p.directory(p.dir, 0o2775, u.first, u.first+2000)
	p.store()
	p.keeper()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(filepath.Join(p.volume, "keeper"), &st))
	require.Equal(t, []uint32{unix.S_IFDIR | 0o2750, u.first + u.uid, u.first + 2000}, []uint32{st.Mode, st.Uid, st.Gid})
	p.does("put", name, "/weights")
	reader := p.startAs(u, "reader", append(p.gpu(), bind(p.volume, volume, readOnly)), "/gpufd", "get", name, "--verify")
	require.Zero(t, reader.wait(), reader.said())
}

// Each container has a user namespace of its own. Users are told apart where these give them
// the same numbers outside: the policy of deploy/kubernetes/daemonset admits the user of
// deploy/kubernetes/reader. A user without a number in the keeper's namespace is refused,
// whatever its number is in its own.
func TestUserNamespaces(t *testing.T) {
	p := newMachine(t).newPod(ordinary)
	p.store()
	keeper := p.keeper("--policy", "/policy.json")
	p.does("put", name, "/weights")
	p.verified(1)
	list := func(u user) *container {
		c := p.startAs(u, "ls", []specs.Mount{bind(p.volume, volume, readOnly)}, "/gpufd", "ls", "--json")
		c.wait()
		return c
	}
	spec := template(t, build(t, filepath.Join(manifests, "reader"))).Spec
	said := spec.SecurityContext
	reader := user{uid: uint32(*said.RunAsUser), gid: uint32(*said.RunAsGroup), first: ordinary.first}
	c := list(reader)
	require.Zero(t, c.wait(), c.said())
	require.Contains(t, c.out.String(), `"name":"llama"`)
	c = p.startAs(reader, "get", []specs.Mount{bind(p.volume, volume, readOnly), bind(p.devicesOf(reader), "/devices")},
		append([]string{"/gpufd", "--json"}, spec.Containers[0].Args...)...)
	c.await(`"holding"`)
	keeper.kill()
	keeper = p.keeper("--policy", "/policy.json")
	p.until(c.said, func() (bool, error) {
		holders := p.does("stat", name)["holders"].([]any)
		require.Len(t, holders, 1)
		h := holders[0].(map[string]any)
		require.Equal(t, float64(reader.uid), h["uid"])
		return h["lost"] != true, nil
	})

	nobody := user{uid: reader.uid, gid: 3000, first: ordinary.first}
	c = list(nobody)
	require.Equal(t, 1, c.wait(), c.said())
	require.Contains(t, c.said(), "permission denied", "of the directory")

	require.NoError(t, os.Chmod(filepath.Join(p.volume, "keeper"), 0o755))
	const unknown = "stands for every user unknown in this user namespace" // as the keeper is to them
	for _, v := range []struct {
		user
		want string
	}{
		{nobody, "this keeper's policy names neither your uid nor your gid"},
		{user{uid: ordinary.uid, gid: ordinary.gid, first: 300_000}, unknown},
		{user{uid: reader.uid, gid: reader.gid, first: 300_000}, unknown},
	} {
		c = list(v.user)
		require.Equal(t, 1, c.wait(), c.said())
		require.Contains(t, c.said(), v.want)
	}
	require.NotContains(t, keeper.said(), "panic")
}
