package check

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// composed reads deploy/compose as docker compose does.
func composed(models string) (*types.Project, error) {
	file := filepath.Join("..", "compose", "compose.yaml")
	options, err := cli.NewProjectOptions([]string{file}, cli.WithEnv([]string{"MODELS=" + models}))
	if err != nil {
		return nil, err
	}
	return options.LoadProject(context.Background())
}

// ofImage returns an instruction of deploy/Containerfile.
func ofImage(t *testing.T, instruction string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "Containerfile"))
	require.NoError(t, err)
	all := regexp.MustCompile(`(?m)^`+instruction+` (.*)$`).FindAllSubmatch(text, -1)
	require.Len(t, all, 1, instruction)
	return string(all[0][1])
}

// A stack runs the services of the Compose file with runc.
type stack struct {
	*machine
	project    *types.Project
	user       user
	remapped   bool // containers have user namespaces, as with userns-remap or a rootless engine
	entrypoint []string
	sockets    string
	devices    string // of the software driver, in the place of a GPU
}

func (m *machine) newStack(u user, remapped bool) *stack {
	m.t.Helper()
	models := m.directory(m.dir, 0o755, u.first, u.first)
	weights, err := os.ReadFile(filepath.Join(m.root, "weights"))
	require.NoError(m.t, err)
	require.NoError(m.t, os.WriteFile(filepath.Join(models, "model.safetensors"), safetensors(weights), 0o644))
	s := &stack{machine: m, user: u, remapped: remapped}
	s.project, err = composed(models)
	require.NoError(m.t, err)
	require.NoError(m.t, json.Unmarshal([]byte(ofImage(m.t, "ENTRYPOINT")), &s.entrypoint))
	program, err := os.ReadFile(gpufd)
	require.NoError(m.t, err)
	m.write(s.entrypoint[0], program)
	s.sockets = m.tmpfs(s.project.Volumes["sockets"])
	s.devices = m.directory("/dev/shm", 0o700, u.first+u.uid, u.first+u.gid)
	return s
}

// safetensors is a file of one tensor.
func safetensors(tensor []byte) []byte {
	header := fmt.Sprintf(`{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%[1]d]}}`, len(tensor))
	return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), []byte(header), tensor)
}

// tmpfs mounts a volume as Docker's driver "local" does.
func (m *machine) tmpfs(volume types.VolumeConfig) string {
	m.t.Helper()
	o := volume.DriverOpts
	dir := m.directory(m.dir, 0o755, 0, 0)
	require.NoError(m.t, unix.Mount(o["device"], dir, o["type"], 0, o["o"]))
	m.t.Cleanup(func() { require.NoError(m.t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return dir
}

// reserves reports whether a service asks for a GPU.
func reserves(s types.ServiceConfig) bool {
	return s.Deploy != nil && s.Deploy.Resources.Reservations != nil && len(s.Deploy.Resources.Reservations.Devices) > 0
}

// mounts are the service's, and the software driver's devices in the place of a GPU.
func (s *stack) mounts(service types.ServiceConfig) (all []specs.Mount) {
	s.t.Helper()
	for _, v := range service.Volumes {
		source := v.Source
		if v.Type == types.VolumeTypeVolume {
			require.Equal(s.t, "sockets", source)
			source = s.sockets
		}
		m := bind(source, v.Target)
		if v.ReadOnly {
			m.Options = append(m.Options, readOnly)
		}
		all = append(all, m)
	}
	for _, t := range service.Tmpfs {
		path, options, _ := strings.Cut(t, ":")
		all = append(all, specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: path,
			Options: append([]string{"noexec", "nosuid", "nodev"}, strings.Split(options, ",")...)})
	}
	if reserves(service) {
		all = append(all, bind(s.devices, "/devices"))
	}
	return all
}

// environment is the service's, with the software driver in the place of libcuda.
func (s *stack) environment(service types.ServiceConfig) (all []string) {
	env := maps.Clone(service.Environment)
	if reserves(service) {
		for k, v := range map[string]string{"DRIVER": "soft", "SOFT_DIR": "/devices", "SOFT_DEVICES": "1", "SOFT_MEMORY": "8MiB"} {
			env["GPUFD_"+k] = &v
		}
	}
	for k, v := range env {
		all = append(all, k+"="+*v)
	}
	return all
}

// spec returns runc's configuration of a service. What the file does not close is open in it, as with Docker.
func (s *stack) spec(name string, args ...string) *specs.Spec {
	s.t.Helper()
	service, err := s.project.GetService(name)
	require.NoError(s.t, err)
	if args == nil {
		args = service.Command
	}
	u := s.user
	_, err = fmt.Sscanf(service.User, "%d:%d", &u.uid, &u.gid)
	require.NoError(s.t, err)
	spec := s.container(u, s.mounts(service), s.environment(service), append(slices.Clone(s.entrypoint), args...))
	spec.Root.Readonly = service.ReadOnly
	spec.Process.NoNewPrivileges = slices.Contains(service.SecurityOpt, "no-new-privileges:true")
	if !slices.Contains(service.CapDrop, "ALL") {
		spec.Process.Capabilities.Bounding = []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_RAW"} // some of Docker's
	}
	shared := map[specs.LinuxNamespaceType]bool{
		specs.PIDNamespace: service.Pid != "", specs.IPCNamespace: service.Ipc != "", specs.UTSNamespace: service.Uts != "",
		specs.NetworkNamespace: service.NetworkMode != "none", specs.UserNamespace: !s.remapped,
	}
	spec.Linux.Namespaces = slices.DeleteFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return shared[n.Type] })
	if !s.remapped {
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = nil, nil
	}
	if limit := int64(service.MemLimit); limit != 0 {
		spec.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}
	}
	return spec
}

// up runs a service, by its own command line if no other is given.
func (s *stack) up(name string, args ...string) *container {
	s.t.Helper()
	return s.begin(name, s.spec(name, args...), nil)
}

// healthy waits until the service's health check succeeds in its container.
func (s *stack) healthy(name string, c *container) {
	s.t.Helper()
	test := s.project.Services[name].HealthCheck.Test
	require.Equal(s.t, "CMD", test[0])
	s.until(c.said, func() (bool, error) {
		_, err := s.runc(append([]string{"exec", c.id}, test[1:]...)...)
		return err == nil, nil
	})
}

// holders waits until n processes hold the weights. It asks in a container like engine-a.
func (s *stack) holders(n int) {
	s.t.Helper()
	var said string
	s.until(func() string { return said }, func() (bool, error) {
		c := s.up("engine-a", "stat", "llama", "--json")
		require.Zero(s.t, c.wait(), c.said())
		said = c.out.String()
		var o struct{ Holders []struct{ Lost bool } }
		require.NoError(s.t, json.Unmarshal([]byte(said), &o), said)
		return len(o.Holders) == n && !o.Holders[0].Lost, nil
	})
}

// TestCompose runs the services of deploy/compose in their order: two engines verify the same
// weights, and when one of them is killed, and then the keeper, the other goes on.
func TestCompose(t *testing.T) {
	t.Run("as root's daemon runs them", func(t *testing.T) {
		u := ordinary
		u.first = 0
		testCompose(t, newMachine(t).newStack(u, false))
	})
	t.Run("in user namespaces", func(t *testing.T) { testCompose(t, newMachine(t).newStack(ordinary, true)) })
}

func testCompose(t *testing.T, s *stack) {
	store, keeper := s.up("fd-store"), s.up("keeper")
	s.healthy("keeper", keeper)
	load := s.up("load")
	require.Zero(t, load.wait(), load.said())
	a, b := s.up("engine-a"), s.up("engine-b")
	a.await("Holding llama, version 1")
	b.await("Holding llama, version 1")
	require.Equal(t, a.out.String(), b.out.String())
	require.Contains(t, a.out.String(), "part 0: gpufd-d1:", "the digest of what they read")
	s.holders(2)
	requireUnprivileged(t, s.user, store, keeper, a, b)
	kinds := []string{"pid", "ipc", "net", "mnt", "uts"}
	if s.remapped {
		kinds = append(kinds, "user")
	}
	requireApart(t, kinds, store, keeper, a, b)

	t.Log("an engine is killed, and the keeper: the other engine has the weights")
	a.kill()
	s.holders(1)
	keeper.kill()
	s.healthy("keeper", s.up("keeper"))
	s.holders(1)

	t.Log("an engine that is started again reads the bytes that were loaded")
	weights, err := os.ReadFile(filepath.Join(s.root, "weights"))
	require.NoError(t, err)
	again := s.up("engine-a", "get", "llama", "-o", "-")
	require.Zero(t, again.wait(), again.said())
	require.True(t, bytes.HasSuffix([]byte(again.out.String()), weights), again.err.String())
	s.holders(1)
	require.NotContains(t, store.said()+b.said(), "panic")
}

// TestComposeFile checks what runc does not show: order, restarts, limits, and which services have a GPU.
func TestComposeFile(t *testing.T) {
	p, err := composed("/models")
	require.NoError(t, err)
	limits := map[string]int64{}
	for _, c := range template(t, build(t, filepath.Join(manifests, "pod"))).Spec.InitContainers {
		if c.Name != "load" {
			limits[c.Name] = c.Resources.Limits.Memory().Value()
		}
	}
	for name, s := range p.Services {
		require.Equal(t, ofImage(t, "USER"), s.User, name)
		require.False(t, s.Privileged || len(s.CapAdd) > 0 || len(s.Devices) > 0, name)
		require.Equal(t, []string{"no-new-privileges:true"}, s.SecurityOpt, name)
		require.True(t, s.ReadOnly, name)
		keeps := name == "fd-store" || name == "keeper"
		require.Equal(t, keeps, !reserves(s), name)
		require.Equal(t, limits[name], int64(s.MemLimit), "as the pod's, which is what the keeper goes by")
		require.Equal(t, keeps, s.Environment["NVIDIA_VISIBLE_DEVICES"] != nil, name)
		require.Equal(t, name != "load", s.Restart == types.RestartPolicyUnlessStopped, name)
		requireCommand(t, s.Command...)
	}
	for _, name := range []string{"load", "engine-a", "engine-b"} {
		devices := p.Services[name].Deploy.Resources.Reservations.Devices
		require.Equal(t, []types.DeviceRequest{{Driver: "nvidia", IDs: []string{"0"}, Capabilities: []string{"gpu"}}}, devices, "the same GPU")
	}
	for _, v := range p.Services["load"].Volumes {
		require.Equal(t, v.Type == types.VolumeTypeBind, v.ReadOnly, v.Target)
	}
	order := map[string]string{}
	for _, on := range []struct{ service, needs string }{{"keeper", "fd-store"}, {"load", "keeper"}, {"engine-a", "load"}, {"engine-b", "load"}} {
		order[on.service] = p.Services[on.service].DependsOn[on.needs].Condition
	}
	require.Equal(t, map[string]string{
		"keeper": types.ServiceConditionStarted, "load": types.ServiceConditionHealthy,
		"engine-a": types.ServiceConditionCompletedSuccessfully, "engine-b": types.ServiceConditionCompletedSuccessfully,
	}, order)
	_, err = composed("")
	require.ErrorContains(t, err, "MODELS", "which has to be said")
}
