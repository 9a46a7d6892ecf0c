package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// causes are what rows name, each once, sorted.
func causes(rows []Row) (all []string) {
	for _, r := range rows {
		if r.Cause != "" {
			all = append(all, r.Cause)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// find returns the first row of that id.
func find(t *testing.T, rows []Row, id string) Row {
	t.Helper()
	i := slices.IndexFunc(rows, func(r Row) bool { return r.ID == id })
	require.GreaterOrEqual(t, i, 0, "no row %s in %v", id, rows)
	return rows[i]
}

// named requires that rows name these causes and no other.
func named(t *testing.T, rows []Row, want ...string) {
	t.Helper()
	require.Equal(t, want, causes(rows), "%v", rows)
}

func needSoft(t *testing.T) {
	t.Helper()
	if cutest.Kind() != cu.Soft {
		t.Skip("the software driver's own")
	}
}

// Nothing is named if nothing is broken, and each way of sharing was tried.
func TestNothingIsBroken(t *testing.T) {
	needSoft(t)
	rows := Run(t.Context(), config(t))
	named(t, rows)
	require.Equal(t, cli.ExitOK, ExitCode(rows))
	for _, id := range []string{"socket", "shm", "fd-limit", "pidfd-getfd", "abstract-socket", "driver", "context", "memory-fd", "legacy-memory", "legacy-event", "imex-channel", "mapped-memory"} {
		require.Equal(t, OK, find(t, rows, id).Status, id)
	}
}

// On GPUs all of the ways that the machine has work on each, too; what it lacks is a warning.
func TestOnTheGPU(t *testing.T) {
	if cutest.Kind() != cu.CUDA {
		t.Skip("for a GPU")
	}
	c := config(t)
	c.Driver = "cuda"
	rows := Run(t.Context(), c)
	of := map[string]int{}
	for _, r := range rows {
		if slices.Contains([]string{"context", "memory-fd", "legacy-memory", "legacy-event"}, r.ID) {
			require.Equal(t, OK, r.Status, "%v", rows)
			of[r.Device]++
		}
	}
	if cutest.Driver(t).Version() >= firstCheckpoints {
		require.Equal(t, OK, find(t, rows, "checkpoint").Status, "%v", rows)
	}
	require.Len(t, of, len(cutest.Driver(t).Devices()))
	for device, n := range of {
		require.Equal(t, 4, n, "device %s: %v", device, rows)
	}
}

// Ways to break the environment or the driver, in one of the two processes or both.
func TestCauses(t *testing.T) {
	needSoft(t)
	for _, c := range []struct {
		name string
		env  []string
		want string
		row  string // that says so
		code int
	}{
		{"a GPU is hidden from the importer", []string{changeEnv + "reader=CUDA_VISIBLE_DEVICES=1"}, "gpu-hidden", "memory-fd", cli.ExitMachine},
		{"the GPUs are hidden from all", []string{"CUDA_VISIBLE_DEVICES=7"}, "visible-devices", "driver", cli.ExitMachine},
		{"some GPUs are hidden from all", []string{"CUDA_VISIBLE_DEVICES=0,7,1"}, "visible-devices", "visible-devices", cli.ExitOK},
		{"no IMEX channel", []string{"GPUFD_SOFT_IMEX=0"}, "imex-channel", "imex-channel", cli.ExitOK},
		{"no legacy IPC", []string{"GPUFD_SOFT_IPC=0"}, "legacy-unsupported", "legacy-memory", cli.ExitOK},
		{"no virtual memory management", []string{"GPUFD_SOFT_VMM=0"}, "no-vmm", "memory-fd", cli.ExitMachine},
		{"an old driver", []string{"GPUFD_SOFT_VERSION=11020"}, "libcuda-version", "driver", cli.ExitOK},
		{"the system is not ready", faults("owner cuInit 802", "reader cuInit 802"), "system-not-ready", "driver", cli.ExitMachine},
		{"libcuda of another version", faults("owner cuInit 803", "reader cuInit 803"), "driver-mismatch", "driver", cli.ExitMachine},
		{"the toolkit's stub", faults("owner cuInit 34", "reader cuInit 34"), "libcuda-duplicates", "driver", cli.ExitMachine},
		{"exclusive compute mode", faults("reader cuDevicePrimaryCtxRetain 46"), "compute-mode", "context", cli.ExitMachine},
		{"contexts are lost", faults("reader cuMemcpyHtoDAsync 700"), "context-lost", "context", cli.ExitMachine},
		{"descriptors are confused", faults("reader cuMemImportFromShareableHandle 999"), "handle-kind", "memory-fd", cli.ExitMachine},
		{"the driver says 101", faults("reader cuMemImportFromShareableHandle 101"), "gpu-hidden", "memory-fd", cli.ExitMachine},
		{"memory without legacy handles", faults("owner cuIpcGetMemHandle 1"), "legacy-kind", "legacy-memory", cli.ExitMachine},
		{"the owner of legacy memory has gone", faults("reader cuIpcOpenMemHandle 400"), "owner-gone", "legacy-memory", cli.ExitMachine},
		{"one's own handle", faults("reader cuIpcOpenMemHandle 201"), "own-handle", "legacy-memory", cli.ExitMachine},
		{"memory that is open by another handle", faults("reader cuIpcOpenMemHandle 208"), "already-open", "legacy-memory", cli.ExitMachine},
		{"a thread without a context", faults("owner cuIpcGetMemHandle 201"), "no-context", "legacy-memory", cli.ExitMachine},
		{"the driver after a suspend", faults("owner cuInit 999", "reader cuInit 999"), "nvidia-uvm", "driver", cli.ExitMachine},
		{"devices without peer access", faults("reader cuIpcOpenMemHandle 217"), "peer-access", "legacy-memory", cli.ExitMachine},
		{"MPS without its daemon", []string{"CUDA_MPS_PIPE_DIRECTORY=/nowhere"}, "mps-directory", "mps-directory", cli.ExitOK},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(c.env[0], "CUDA_VISIBLE_DEVICES") { // which takes two
				t.Setenv("GPUFD_SOFT_DEVICES", "1") // for the processes of doctor; this one opens no driver here
			}
			for _, v := range c.env {
				k, value, _ := strings.Cut(v, "=")
				t.Setenv(k, value)
			}
			rows := Run(t.Context(), config(t))
			named(t, rows, c.want)
			r := find(t, rows, c.row)
			require.Equal(t, c.want, r.Cause, "%v", r)
			require.NotEmpty(t, r.Do)
			require.Equal(t, c.code, ExitCode(rows))
		})
	}
}

func faults(all ...string) []string { return []string{faultsEnv + "=" + strings.Join(all, ",")} }

// A driver that hangs costs its check the time for one, and no other check anything.
func TestDriverThatHangs(t *testing.T) {
	needSoft(t)
	t.Setenv("GPUFD_SOFT_DEVICES", "1")
	t.Setenv(faultsEnv, "reader cuMemImportFromShareableHandle hang")
	t.Setenv("GPUFD_SOFT_IMEX", "0") // which is imported likewise
	c := config(t)
	c.Timeout = 5 * time.Second // for what does not hang, on a busy machine
	rows := Run(t.Context(), c)
	named(t, rows, "imex-channel", "timeout")
	require.Equal(t, "timeout", find(t, rows, "memory-fd").Cause)
	require.Equal(t, OK, find(t, rows, "legacy-memory").Status)
	require.Equal(t, cli.ExitPeer, ExitCode(rows))
}

// A driver that hangs when it is opened says nothing of what takes no driver.
func TestDriverThatHangsAtOnce(t *testing.T) {
	needSoft(t)
	t.Setenv(faultsEnv, "owner cuInit hang")
	c := config(t)
	c.Timeout = 5 * time.Second // for what does not hang, on a busy machine
	rows := Run(t.Context(), c)
	named(t, rows, "timeout") // cuInit does not return
	require.Equal(t, "timeout", find(t, rows, "driver").Cause)
	for _, id := range []string{"fd-limit", "pidfd-getfd", "abstract-socket"} {
		require.Equal(t, OK, find(t, rows, id).Status)
	}
	require.Equal(t, cli.ExitPeer, ExitCode(rows))
}

// If no process can be started, checks that take one were not tried.
func TestNoProcess(t *testing.T) {
	c := config(t)
	c.Child = func() *exec.Cmd { return exec.Command(filepath.Join(t.TempDir(), "none")) }
	rows := Run(t.Context(), c)
	named(t, rows, "driver") // no process can be started
	for _, id := range []string{"fd-limit", "pidfd-getfd", "abstract-socket"} {
		r := find(t, rows, id)
		require.Equal(t, Unknown, r.Status)
		require.Regexp(t, `^not tried: starting a process: .*no such file or directory$`, r.Seen)
	}
	require.Equal(t, cli.ExitMachine, ExitCode(rows))
}

// A silent peer is told from a driver that hangs, and costs the time for one
// check.
func TestPeerThatIsSilent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mute")
	l := ok(sock.Listen(path))(t)
	defer func() { require.NoError(t, errors.Join(l.Remove(), l.Close())) }()
	c := config(t)
	c.Timeout = 2 * time.Second
	rows := With(t.Context(), c, path)
	named(t, rows, "peer-silent") // the other side never answers
	require.Equal(t, cli.ExitPeer, ExitCode(rows))
}

// A run that is interrupted has no rows about checks that it did not end.
func TestInterrupted(t *testing.T) {
	needSoft(t)
	t.Setenv(faultsEnv, "owner cuInit hang")
	ctx, cancel := context.WithCancel(t.Context())
	c := config(t)
	c.Report = func(r Row) {
		if r.ID == "abstract-socket" {
			cancel()
		}
	}
	named(t, Run(ctx, c))
}

// Without libcuda the driver that was asked for is not there.
func TestNoLibcuda(t *testing.T) {
	c := config(t)
	c.Driver = "cuda"
	libcuda := filepath.Join(t.TempDir(), "libcuda.so.1")
	t.Setenv("LD_LIBRARY_PATH", filepath.Dir(libcuda))
	if found := libraries(libraryDirs()); len(found) > 0 {
		t.Skipf("libcuda is here: %v", found)
	}
	t.Setenv("GPUFD_DRIVER", "cuda")
	rows := Run(t.Context(), c)
	named(t, rows, "no-libcuda") // no libcuda in any directory
	require.Equal(t, Fail, find(t, rows, "driver").Status)
	require.Equal(t, cli.ExitMachine, ExitCode(rows))
}

// Several libcuda of different versions are told apart, and each file counts once.
func TestLibraries(t *testing.T) {
	a, b, c := t.TempDir(), t.TempDir(), t.TempDir()
	for dir, version := range map[string]string{a: "580.1.2", b: "570.9"} {
		file := filepath.Join(dir, "libcuda.so."+version)
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		require.NoError(t, os.Symlink(file, filepath.Join(dir, "libcuda.so.1")))
	}
	require.NoError(t, os.Symlink(filepath.Join(a, "libcuda.so.1"), filepath.Join(c, "libcuda.so.1")))
	require.Equal(t, map[string]string{filepath.Join(a, "libcuda.so.580.1.2"): "580.1.2", filepath.Join(b, "libcuda.so.570.9"): "570.9"},
		libraries([]string{a, b, c, "/nowhere"}))
	require.Equal(t, OK, judgeLibraries("x", libraries([]string{a, c}), "580.1.2").Status)
	require.Equal(t, "libcuda-duplicates", judgeLibraries("x", libraries([]string{a, b}), "").Cause)
	require.Equal(t, "driver-mismatch", judgeLibraries("x", libraries([]string{a}), "570.9").Cause)
}

// The path of a socket that is too long, and what else may be there.
func TestSockets(t *testing.T) {
	needSoft(t)
	c := config(t)
	c.Socket = filepath.Join(t.TempDir(), strings.Repeat("d", 80), "producer.sock")
	require.NoError(t, os.Mkdir(filepath.Dir(c.Socket), 0o700))
	named(t, Run(t.Context(), c), "path-too-long") // a default socket of more than 107 bytes
	open := filepath.Join(t.TempDir(), "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	c.Socket = filepath.Join(open, "producer.sock")
	named(t, Run(t.Context(), c), "socket") // a directory of mode 0777 for the default socket

	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	l := ok(sock.Listen(path("dead")))(t)
	c.Socket = path("dead")
	require.Equal(t, "the default socket, "+c.Socket+", was connected to", find(t, Run(t.Context(), c), "socket").Seen)
	require.NoError(t, l.Close())
	require.NoError(t, os.WriteFile(path("file"), nil, 0o600))
	longest := path(strings.Repeat("l", 106-len(dir)))
	for name, want := range map[string]string{
		path("dead"):             "socket-dead", // GPUFD_SOCKET: its listener has ended
		path("n"):                "socket-dead", // GPUFD_SOCKET: nothing is there
		longest:                  "socket-dead", // GPUFD_SOCKET: nothing is there, and the path has 107 bytes
		filepath.Join(open, "s"): "socket",      // GPUFD_SOCKET: in a directory of mode 0777
		path("none/s"):           "socket",      // GPUFD_SOCKET: in no directory
	} {
		c.Named = name // what can be listened at beside it shows that only its owner is missing
		rows := Run(t.Context(), c)
		named(t, rows, want)
		require.Equal(t, map[string]Status{"socket-dead": Warn, "socket": Fail}[want], find(t, rows, "socket").Status, name)
		require.Contains(t, find(t, rows, "socket").Seen, name)
	}
	stream := ok(net.Listen("unix", path("stream")))(t)
	defer stream.Close()
	defer babbler(t, path("babbler"))()
	for name, want := range map[string]string{
		"dead":                     "socket-dead",    // --with: its listener has ended
		"nothing":                  "socket-dead",    // --with: nothing is there
		"file":                     "socket-foreign", // --with: a file
		"stream":                   "socket-foreign", // --with: a socket of another type
		"babbler":                  "socket-foreign", // --with: a listener that speaks HTTP
		strings.Repeat("long", 40): "path-too-long",  // --with: a path of more than 107 bytes
	} {
		rows := With(t.Context(), config(t), path(name))
		named(t, rows, want)
		require.Equal(t, cli.ExitFailed, ExitCode(rows))
	}
}

// babbler listens and says what is no record of gpufd.
func babbler(t *testing.T, path string) (end func()) {
	l := ok(sock.Listen(path))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept(context.Background())
			if err != nil {
				return
			}
			_ = conn.Send(context.Background(), []byte("HTTP/1.1 400 Bad Request"))
			_ = conn.Close()
		}
	}()
	return func() {
		require.NoError(t, l.Remove())
		require.NoError(t, l.Close())
		<-done
	}
}

// A descriptor keeps memory in a process that uses no driver; it is named.
func TestHeldMemory(t *testing.T) {
	needSoft(t)
	drv := cutest.Driver(t)
	buf := ok(vmm.New(drv.Devices()[0], 4<<20))(t)
	_, files, err := buf.Export()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), "sleep", "300")
	cmd.ExtraFiles = files
	require.NoError(t, cmd.Start())
	require.NoError(t, sock.CloseFiles(files))
	require.NoError(t, buf.Close())
	defer func() {
		require.NoError(t, cmd.Process.Kill())
		require.Error(t, cmd.Wait())
		require.NotEqual(t, Warn, held(cu.Soft, nil)[0].Status)
	}()
	rows := Run(t.Context(), config(t))
	named(t, rows, "held-memory") // a process without a driver has a descriptor of 4 MiB, whose maker has closed it
	require.Contains(t, find(t, rows, "held-memory").Seen, fmt.Sprintf("process %d (sleep) has 1 of 4", cmd.Process.Pid))
}

// On a GPU a descriptor says that a process may hold memory, and no more: a child may have
// inherited it.
func TestHeldMemoryOfAGPU(t *testing.T) {
	r := heldRow(cu.CUDA, []holder{{pid: 7, name: "worker", files: 2}}, 0)
	require.Equal(t, Warn, r.Status)
	require.Equal(t, "processes that use no driver may hold device memory, by descriptors of /dev/nvidiactl: process 7 (worker) has 2", r.Seen)
	require.Equal(t, Unknown, heldRow(cu.CUDA, nil, 3).Status)
	require.Equal(t, OK, heldRow(cu.CUDA, nil, 0).Status)
}

// The driver's real answers to mistakes are explained.
func TestRealMistakes(t *testing.T) {
	drv := cutest.Driver(t)
	dev := drv.Devices()[0]
	ctx := cutest.Context(t, dev)
	buf := ok(vmm.New(dev, 2<<20))(t)
	defer buf.Close()
	_, _, ofBuffer := ctx.IPCHandle(buf.Ptr())
	pool := ok(dev.DefaultPool())(t)
	stream := ctx.NullStream()
	pooled := ok(pool.AllocAsync(stream, 1<<20))(t)
	_, _, ofPool := ctx.IPCHandle(pooled.Ptr())
	require.NoError(t, pooled.Close())
	require.NoError(t, stream.Synchronize(t.Context()))
	m := ok(ctx.Alloc(4096))(t)
	h := ok(m.IPCHandle())(t)
	_, own := ctx.OpenIPC(h)
	require.NoError(t, m.Close())
	fd := ok(unix.MemfdCreate("x", 0))(t)
	file := os.NewFile(uintptr(fd), "x")
	_, notMemory := drv.ImportMemory(file, 2<<20)
	require.NoError(t, file.Close())
	for want, err := range map[string][]error{
		"legacy-kind": {ofBuffer, ofPool}, "own-handle": {own}, "handle-kind": append(confusedHandles(t, dev), notMemory),
	} {
		for _, err := range err {
			require.Error(t, err)
			meaning := Explain(err.Error())
			require.NotEmpty(t, meaning.Causes, "%v", err)
			require.Equal(t, want, meaning.Causes[0].ID, "%v", err)
		}
	}
}

// confusedHandles are the errors of those that take a descriptor for a fabric handle, and the
// reverse.
func confusedHandles(t *testing.T, dev *cu.Device) []error {
	t.Helper()
	drv := dev.Driver()
	m := ok(dev.CreateMemory(2<<20, cu.HandleFD))(t)
	_, asFabric := m.ExportFabric()
	require.NoError(t, m.Close())
	const address = 0x7f00_1234_5678 // a fabric handle is passed by its address, which is no descriptor's number
	r := drv.Caller().CuMemImportFromShareableHandle(new(sys.CUmemGenericAllocationHandle), address, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
	all := []error{asFabric, fmt.Errorf("cuMemImportFromShareableHandle: %v", r)}
	if yes, err := dev.SupportsFabric(); err == nil && yes {
		_, wrong := drv.ImportFabric(cu.FabricHandle{3}, 2<<20) // a descriptor's number
		all = append(all, wrong)
	}
	return all
}

// A sign that doctor can see and not try is UNKNOWN, or a warning, and never OK.
func TestSigns(t *testing.T) {
	rows := signs(answer{Devices: []deviceInfo{{Name: "MIG 1g.10gb", MIG: true}, {Mode: cu.ComputeModeExclusiveProcess.String()}, {Mode: cu.ComputeModeDefault.String()}}})
	require.Equal(t, Unknown, find(t, rows, "mig").Status)
	require.Contains(t, find(t, rows, "mig").Seen, "MIG 1g.10gb is a MIG instance: not tried")
	require.Equal(t, Warn, find(t, rows, "compute-mode").Status)
	ids := 0
	for _, r := range rows {
		require.NotEqual(t, OK, r.Status)
		if r.ID == "compute-mode" {
			ids++
		}
	}
	require.Equal(t, 1, ids, "the default mode is none")
}

// Bytes that do not arrive are seen on both sides, in each way of sharing: a driver that says
// that it has copied is not believed.
func TestBytesThatDoNotArrive(t *testing.T) {
	needSoft(t)
	t.Setenv("GPUFD_SOFT_DEVICES", "1")
	for _, role := range []string{"owner", "reader"} {
		t.Setenv(faultsEnv, role+" cuMemcpyHtoDAsync 0")
		rows := Run(t.Context(), config(t))
		for _, id := range []string{"context", "memory-fd", "legacy-memory", "imex-channel"} {
			r := find(t, rows, id)
			require.NotEqual(t, OK, r.Status, "%s: %v", role, r)
			require.Contains(t, r.Seen, "the bytes are not those that were written", role)
		}
		require.Equal(t, OK, find(t, rows, "legacy-event").Status)
	}
}
