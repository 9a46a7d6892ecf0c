package compute

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/kernels"
)

// ring starts the program, on the driver that tests run on. When the test ends, so
// have all processes of the ring, all device memory is free and nothing lies about.
func ring(t *testing.T, env []string, args ...string) *programs.Process {
	t.Helper()
	cmd := exec.Command(programs.ProgramPath(t, "ring"), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // as a shell does it
	var p *programs.Process
	env = append(programs.OwnDevices(t), env...)
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		for id, pid := range members(p) {
			programs.Eventually(t, func() bool { return !alive(pid) }, "process %d outlives its ring", id)
		}
	})
	p = programs.StartCommand(t, "ring", cmd, env)
	return p
}

var startedLine = regexp.MustCompile(`^Started process (\d+) \(pid (\d+)\)`)

// members are the pids of a ring's processes.
func members(p *programs.Process) (pids []int) {
	for _, line := range programs.Find(p, "Started process ") {
		pid, _ := strconv.Atoi(startedLine.FindStringSubmatch(line)[2])
		pids = append(pids, pid)
	}
	return pids
}

// alive reports whether a process is there and has not ended.
func alive(pid int) bool {
	s := programs.State(pid)
	return s != 0 && s != 'Z' && s != 'X'
}

// allMapped waits until all processes have mapped the memory, and returns their pids.
func allMapped(p *programs.Process) []int {
	p.WaitLine("Each of ")
	return members(p)
}

// small is a chunk that the software driver fills at once.
var small = args("-size", "8KiB")

func TestRing(t *testing.T) {
	programs.Parallel(t)
	procs := "8"
	if cutest.Kind() == cu.CUDA {
		procs = "4" // each has a context
	}
	for name, a := range map[string][]string{
		"default":        {"-size", "64KiB"},
		"-procs 1":       {"-procs", "1"},
		"-procs 2":       {"-procs", "2", "-size", "1MiB"},
		"many":           {"-procs", procs, "-size", "256KiB"},
		"many on first":  {"-procs", procs, "-size", "64KiB", "-place", "first"},
		"many, spread":   {"-procs", procs, "-size", "64KiB", "-place", "spread"},
		"one step":       {"-procs", "3", "-steps", "1", "-size", "8KiB"},
		"fewer steps":    {"-procs", "3", "-steps", "2", "-size", "8KiB"},
		"many steps":     {"-procs", "3", "-steps", "100", "-size", "1KiB"},
		"-compat":        {"-procs", "3", "-compat", "-size", "8KiB"},
		"salt":           {"-procs", "3", "-salt", "4294967295", "-size", "8KiB"},
		"1 byte":         {"-procs", "3", "-size", "1"},
		"odd":            {"-procs", "2", "-size", "2097155"},
		"-timeout short": {"-procs", "2", "-size", "1", "-timeout", programs.Enough},
	} {
		t.Run(name, func(t *testing.T) {
			if !slices.Contains(args("default", "many on first", "fewer steps", "-compat", "odd"), name) {
				cutest.ProvenOnSoft(t)
			}
			p := ring(t, nil, a...)
			p.Succeeds()
			require.Len(t, programs.Find(p, "Data verification PASSED"), 1, p.Dump())
			require.Len(t, programs.Find(p, "Process "), len(members(p)))
		})
	}
}

// TestRingManyProcesses: as many as there may be.
func TestRingManyProcesses(t *testing.T) {
	programs.Parallel(t)
	if cutest.Kind() == cu.CUDA || cutest.Emulated() || testing.Short() {
		t.Skip("64 processes with a context each take long")
	}
	p := ring(t, nil, "-procs", "64", "-steps", "2", "-size", "1")
	p.Succeeds()
	require.Len(t, members(p), 64)
}

func TestRingJSON(t *testing.T) {
	programs.Parallel(t)
	granularity, _, err := cutest.Device(t).Granularity(cu.HandleFD)
	require.NoError(t, err)
	size := granularity + 1
	p := ring(t, nil, "-json", "-procs", "3", "-steps", "2", "-size", programs.Decimal(size), "-salt", "7", "-place", "first", "-v")
	p.Succeeds()
	last, all := p.Result()
	for name, want := range map[string]any{"ok": true, "processes": 3.0, "steps": 2.0, "salt": 7.0, "place": "first", "compat": false,
		"size": float64(size), "aligned": float64(2 * granularity), "driver": programs.KindName()} {
		require.Equal(t, want, last[name], name)
	}
	took := last["steps_us"].(map[string]any)
	for _, step := range []string{"driver", "devices", "create", "start", "fill", "check"} {
		require.Greater(t, took[step], 0.0, step)
	}
	require.EqualValues(t, 3, programs.Event(t, p, "created")["chunks"], "all on the first device")
	n := map[any]int{}
	for _, e := range all {
		n[e["event"]]++
		if e["event"] == "step" {
			step, process := int(e["step"].(float64)), int(e["process"].(float64))
			require.EqualValues(t, (step+process)%3, e["chunk"])
		}
	}
	require.Equal(t, 6, n["step"])
	require.Equal(t, 3, n["started"])
	require.Equal(t, 3, n["ended"])
}

// Each device has the chunks of its own processes, or the first has all.
func TestRingPlace(t *testing.T) {
	programs.Parallel(t)
	programs.TwoUUIDs(t)
	for place, want := range map[string][]string{
		"spread": {"Created 2 chunks on device 0", "Created 1 chunk on device 1"},
		"first":  {"Created 3 chunks on device 0"},
	} {
		p := ring(t, nil, append(small, "-procs", "3", "-place", place)...)
		p.Succeeds()
		require.Equal(t, want, programs.Find(p, "Created "))
		require.Len(t, programs.Find(p, "Started process 1 (pid "), 1)
		require.Contains(t, programs.Find(p, "Started process 1 (pid ")[0], " on device 1")
	}
}

func TestRingSizes(t *testing.T) {
	programs.Parallel(t)
	for _, c := range []struct{ procs, size uint64 }{{2, 2*programs.GiB + 1}, {2, 4*programs.GiB + 3}, {3, 5 * programs.GiB}, {1, 20 * programs.GiB}} {
		t.Run(fmt.Sprintf("fault 69: %d with %d", c.procs, c.size), func(t *testing.T) {
			programs.SkipOnSoft(t, "the software driver's memory is the host's, and it is slow")
			ring(t, nil, "-procs", programs.Decimal(c.procs), "-size", programs.Decimal(c.size)).Succeeds()
		})
	}
}

// TestRingWrong: what cannot be is one line.
func TestRingWrong(t *testing.T) {
	programs.Parallel(t)
	dir := t.TempDir()
	for _, c := range []programs.WrongCase{
		{Name: "-procs 0", Args: args("-procs", "0"), Code: 2, Words: args("-procs 0", "1 to 64")},
		{Name: "-steps 0", Args: args("-steps", "0"), Code: 2, Words: args("-steps 0", "1 or more")},
		{Name: "-size 0", Args: args("-size", "0"), Code: 2, Words: args("-size", "more than 0")},
		{Name: "-place last", Args: args("-place", "last"), Code: 2, Words: args("-place", "first or spread")},
		{Name: "-salt with -compat", Args: args("-salt", "1", "-compat"), Code: 2, Words: args("-salt 1", "-compat")},
		{Name: "-module without a name", Args: args("-module", ""), Code: 2, Words: args("-module")},
		{Name: "as a member", Args: args("member"), Code: 2, Words: args("member is for the processes that ring starts itself")},
		{Name: "too large", Args: args("-size", "1TiB"), Code: 1, Words: args("-size 1TiB", "such chunk", "and has only")},
		{Name: "too many", Args: args("-size", "16777215TiB", "-procs", "64"), Code: 1, Words: args("such chunks, and has only")},
		{Name: "no such module", Args: args("-procs", "2", "-module", dir+"/none"), Code: 1, Words: args("-module "+dir+"/none", "no such file")},
		{Name: "no module", Args: args("-procs", "2", "-module", file(t, []byte("no PTX"))), Code: 1, Words: args("-module ", "cuModuleLoad: CUDA_ERROR_")},
		{Name: "no such kernel", Args: args("-procs", "2", "-module", file(t, []byte(probes))), Code: 1, Words: args("has no kernel fill_bytes", "CUDA_ERROR_NOT_FOUND (500)")},
		{Name: "no devices", Args: args("-driver", "soft"), Env: args("GPUFD_SOFT_DEVICES=0"), Code: 3, Words: args("CUDA_ERROR_NO_DEVICE (100)")},
	} {
		t.Run(c.Name, func(t *testing.T) { ring(t, c.Env, c.Args...).Fails(c.Code, c.Words...) })
	}
}

// TestRingUnreachableDevice: a device that the others cannot reach is left out.
func TestRingUnreachableDevice(t *testing.T) {
	programs.Parallel(t)
	p := ring(t, args("GPUFD_DRIVER=soft", "GPUFD_SOFT_DEVICES=2", "GPUFD_SOFT_PEERS=0", "CUDA_VISIBLE_DEVICES=0,1"), append(small, "-procs", "3")...)
	p.Succeeds()
	require.Contains(t, programs.Find(p, "Not using CUDA device 1: ")[0], "cannot reach each other's memory (GPUFD_SOFT_PEERS=0)")
	require.Len(t, programs.Find(p, "Using CUDA device "), 1)
	require.Contains(t, programs.Find(p, "Created ")[0], "3 chunks on device 0")
}

// fillKernel is the kernel of package kernels with a line replaced.
func fillKernel(t *testing.T, old, new string) (name string) {
	t.Helper()
	for _, b := range kernels.Builtins() {
		if b.Name == "memory" {
			require.Contains(t, b.PTX, old)
			name = file(t, []byte(strings.Replace(b.PTX, old, new, 1)))
		}
	}
	require.NotEmpty(t, name)
	return name
}

// Parts of the kernel that fills, and what to have there instead.
const (
	fillStore = "st.global.u8 	[%rd12], %rs1;"
	fillValue = "ld.param.u8 	%rs1, [fill_bytes_param_2];"
	fillNext  = "add.s64 	%rd13, %rd13, %rd3;"

	storesAllBut777 = "setp.ne.u64 %p2, %rd13, 777; @%p2 st.global.u8 [%rd12], %rs1;"
	storesNowhere   = "st.global.u8 [%rd13], %rs1;"
	valueIsOne      = "mov.u16 %rs1, 1;"
	staysThere      = "ld.volatile.global.u8 %rs1, [%rd12];"
)

// endless is a module whose kernel never ends.
func endless(t *testing.T) string { return fillKernel(t, fillNext, staysThere) }

func TestRingModule(t *testing.T) {
	programs.Parallel(t)
	ring(t, nil, append(small, "-procs", "2", "-module", fillKernel(t, fillStore, fillStore))...).Succeeds()
}

// TestRingWrongData: one byte that is not filled, all, and the values of another
// process are found, and the process, the offset and both bytes are named.
func TestRingWrongData(t *testing.T) {
	programs.Parallel(t)
	t.Run("one byte", func(t *testing.T) {
		p := ring(t, nil, append(small, "-procs", "3", "-salt", "0", "-module", fillKernel(t, fillStore, storesAllBut777))...)
		p.Fails(1, "3 processes failed, among them process 0: its chunk is wrong: at offset 777, want 0x02, got 0x00; no other is wrong")
		require.Len(t, programs.Find(p, "Process 1 failed: its chunk is wrong: at offset 777, want 0x03, got 0x00;"), 1, p.Dump())
		require.Len(t, programs.Find(p, "Process 2 failed: its chunk is wrong: at offset 777, want 0x01, got 0x00;"), 1, p.Dump())
		require.Empty(t, programs.Find(p, "Data verification"))
	})
	t.Run("never filled", func(t *testing.T) {
		p := ring(t, nil, append(small, "-json", "-procs", "1", "-salt", "41", "-module", fillKernel(t, fillStore, ""))...)
		p.Fails(1, "process 0: its chunk is wrong: at offset 0, want 0x2a, got 0x00; 8192 bytes are wrong")
		ended := programs.Event(t, p, "ended")
		for name, want := range map[string]float64{"process": 0, "exit": 1, "offset": 0, "want": 42, "got": 0, "wrong": 8192} {
			require.Equal(t, want, ended[name], name)
		}
	})
	t.Run("values of the sample", func(t *testing.T) {
		one := fillKernel(t, fillValue, valueIsOne)
		ring(t, nil, append(small, "-procs", "2", "-compat", "-module", one)...).
			Fails(1, "ring: process 1: its chunk is wrong: at offset 0, want 0x00, got 0x01; 8192 bytes")
		p := ring(t, nil, append(small, "-procs", "3", "-steps", "1", "-compat", "-module", one)...)
		p.Fails(1, "2 processes failed, among them process 0: its chunk is wrong: at offset 0, want 0x00, got 0x01")
		require.Len(t, programs.Find(p, "Process 1 has found its chunk right"), 1, p.Dump())
		require.Len(t, programs.Find(p, "Process 2 failed: its chunk is wrong: at offset 0, want 0x02, got 0x01"), 1, p.Dump())
	})
}

// TestRingKernelDies: a process whose kernel dies says so, and the others that it
// is lost.
func TestRingKernelDies(t *testing.T) {
	programs.Parallel(t)
	p := ring(t, nil, append(small, "-procs", "2", "-module", fillKernel(t, fillStore, storesNowhere))...)
	said := p.Fails(1, "ring: process ", " step 0: CUDA_ERROR_ILLEGAL_ADDRESS (700), noticed by cu")
	if cutest.Kind() == cu.Soft {
		require.Contains(t, said, ": illegal address 0x", "what it died of comes first")
	}
}

// requirePeerLost wants everybody who is left to end because one is lost, and long
// before the -timeout. Those who were halted meanwhile may have been killed instead.
func requirePeerLost(t *testing.T, p *programs.Process, gone int, since time.Time, halted ...int) {
	t.Helper()
	p.Fails(4, fmt.Sprintf("peer %d lost: its process, pid %d, was killed (signal ", gone, members(p)[gone]))
	require.Less(t, time.Since(since), time.Minute, p.Dump())
	for id := range members(p) {
		if slices.Contains(halted, id) {
			continue
		}
		line := fmt.Sprintf("Process %d failed: peer %d lost (exit code 4)", id, gone)
		if id == gone {
			line = fmt.Sprintf("Lost process %d (pid ", id)
		}
		require.Len(t, programs.Find(p, line), 1, p.Dump())
	}
	require.Empty(t, programs.Find(p, "Data verification"))
}

// unhurried is a -timeout that is far away.
var unhurried = args("-timeout", "2m")

// haltAtBarrier starts a ring of which process 0 is stopped, so that the others
// come to wait for it at the barrier, and waits until process 1 does.
func haltAtBarrier(t *testing.T, more ...string) (p *programs.Process, pids []int) {
	t.Helper()
	p = ring(t, nil, append(args("-procs", "4", "-size", "1KiB", "-steps", "1000000", "-v"), more...)...)
	p.WaitLine("Step 3: ")
	pids = members(p)
	require.NoError(t, syscall.Kill(pids[0], syscall.SIGSTOP))
	programs.Eventually(t, func() bool { return programs.State(pids[0]) == 'T' }, "process 0 does not stop")
	for id := 1; id < len(pids); id++ {
		programs.Eventually(t, func() bool { return lastStep(p, id) > lastStep(p, 0) }, "process %d does not come to the barrier", id)
	}
	return p, pids
}

// lastStep is the last step that a process is known to have done.
func lastStep(p *programs.Process, id int) (step int) {
	for _, line := range programs.Find(p, "Step ") {
		var n, process int
		_, err := fmt.Sscanf(line, "Step %d: process %d ", &n, &process)
		if err == nil && process == id {
			step = n
		}
	}
	return step
}

// TestFault8_MemberDiesAtTheBarrier: one of the members that wait for another
// dies. The rest, which waits too, hears of it at once.
func TestFault8_MemberDiesAtTheBarrier(t *testing.T) {
	programs.Parallel(t)
	p, pids := haltAtBarrier(t, unhurried...)
	before := time.Now()
	require.NoError(t, syscall.Kill(pids[2], syscall.SIGKILL))
	p.WaitLine("Process 1 failed: peer 2 lost")
	p.WaitLine("Process 3 failed: peer 2 lost")
	_ = syscall.Kill(pids[0], syscall.SIGCONT) // it may be gone: it has a few seconds
	requirePeerLost(t, p, 2, before, 0)
}

// TestFault8_MemberThatCannotEnd: a member is halted when another dies, and so
// cannot do as it is told. It is killed.
func TestFault8_MemberThatCannotEnd(t *testing.T) {
	programs.Parallel(t)
	p, pids := haltAtBarrier(t, unhurried...)
	require.NoError(t, syscall.Kill(pids[2], syscall.SIGKILL))
	p.Fails(4, "peer 2 lost")
	require.Len(t, programs.Find(p, "Process 1 failed: peer 2 lost (exit code 4)"), 1, p.Dump())
	require.Empty(t, programs.Find(p, "Process 0 failed"), p.Dump())
}

// TestFault8_MemberDiesWhileFilling: the kernels of all run, and never end.
func TestFault8_MemberDiesWhileFilling(t *testing.T) {
	programs.Parallel(t)
	p := ring(t, nil, append(unhurried, "-procs", "3", "-size", "1", "-module", endless(t))...)
	pids := allMapped(p)
	before := time.Now()
	require.NoError(t, syscall.Kill(pids[1], syscall.SIGTERM))
	requirePeerLost(t, p, 1, before)
}

// TestFault8_MemberDiesWhileStarting: before it has mapped anything.
func TestFault8_MemberDiesWhileStarting(t *testing.T) {
	programs.Parallel(t)
	p := ring(t, nil, append(unhurried, "-procs", "3", "-size", "1", "-steps", "1000000")...)
	p.WaitLine("Started process 2")
	before := time.Now()
	require.NoError(t, syscall.Kill(members(p)[2], syscall.SIGKILL))
	requirePeerLost(t, p, 2, before)
}

// TestFault8_ParentDies: the members end, whether they wait or their kernels run.
func TestFault8_ParentDies(t *testing.T) {
	programs.Parallel(t)
	for name, a := range map[string][]string{
		"at the barrier": {"-steps", "1000000"},
		"while filling":  {"-module", endless(t)},
	} {
		t.Run(name, func(t *testing.T) {
			p := ring(t, nil, append(append(unhurried, "-procs", "3", "-size", "1"), a...)...)
			pids := allMapped(p)
			p.Signal(syscall.SIGKILL)
			for _, pid := range pids {
				programs.Eventually(t, func() bool { return !alive(pid) }, "a process outlives its ring")
			}
			require.Equal(t, -1, p.Wait())
			require.Len(t, p.Err.All(), 3, p.Dump())
			for _, line := range p.Err.All() {
				require.Regexp(t, `^ring: process ([012]|with pid \d+): the parent is lost`, line)
			}
		})
	}
}

// TestFault8_ParentDiesWhileMembersAreStuck: in driver calls, which here wait for a
// lock. Soon after their parent they end all the same.
func TestFault8_ParentDiesWhileMembersAreStuck(t *testing.T) {
	programs.Parallel(t)
	if cutest.Kind() == cu.CUDA {
		t.Skip("the lock is the software driver's")
	}
	dir := programs.OwnSoftDir(t)
	p := ring(t, args("GPUFD_SOFT_DIR="+dir), append(unhurried, "-procs", "3", "-size", "1", "-steps", "1000000")...)
	p.WaitLine("Started process 0")
	lock, err := os.Open(filepath.Join(dir, "lock"))
	require.NoError(t, err)
	defer lock.Close() // before all else that ends: it would wait
	require.NoError(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	p.WaitLine("Started process 2")
	p.Signal(syscall.SIGKILL)
	for _, pid := range members(p) {
		programs.Eventually(t, func() bool { return !alive(pid) }, "a process outlives its ring")
	}
	require.NoError(t, lock.Close())
	require.Equal(t, -1, p.Wait())
	require.Len(t, p.Err.All(), 3, p.Dump())
	for _, line := range p.Err.All() { // some may have been there before the lock
		require.Regexp(t, `^ring: process ([012]|with pid \d+): the parent is lost`, line)
	}
	if len(programs.Find(p, "Each of ")) == 0 {
		require.Contains(t, p.Err.String(), "the parent is lost; ended by force, because its work took over", p.Dump())
	}
}

// TestRingInterrupted: by a signal to the parent, or from a terminal to all.
func TestRingInterrupted(t *testing.T) {
	programs.Parallel(t)
	for name, a := range map[string][]string{
		"at the barrier": {"-steps", "1000000"},
		"while filling":  {"-module", endless(t)},
	} {
		for to, send := range map[string]func(pid int) error{
			"parent": func(pid int) error { return syscall.Kill(pid, syscall.SIGTERM) },
			"all":    func(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) },
		} {
			t.Run(name+", "+to, func(t *testing.T) {
				p := ring(t, nil, append(append(unhurried, "-procs", "3", "-size", "1"), a...)...)
				allMapped(p)
				require.NoError(t, send(p.PID()))
				require.Equal(t, "ring: interrupted", p.Fails(1))
			})
		}
	}
}

// TestRingTimeout: a member that does nothing is given up after -timeout, and does
// not live on.
func TestRingTimeout(t *testing.T) {
	t.Run("halted", func(t *testing.T) {
		programs.Parallel(t)
		p, pids := haltAtBarrier(t, "-timeout", programs.Enough)
		p.Fails(4, fmt.Sprintf("process 0 (pid %d) was silent for ", pids[0]), ", at step ", "wait longer with --timeout")
		require.Len(t, programs.Find(p, "Process 1 failed: peer 0 lost (exit code 4)"), 1, p.Dump())
	})
	t.Run("endless kernel", func(t *testing.T) {
		programs.Parallel(t)
		p := ring(t, nil, "-timeout", programs.Enough, "-procs", "2", "-size", "1", "-module", endless(t))
		p.Fails(4, " lives but has not finished step 0, and no process has done anything for "+programs.Enough, "a kernel or a call of the driver may hang")
	})
}

// TestRingWaitsQuietly: who waits at the barrier uses no CPU, and has no
// sockets of others.
func TestRingWaitsQuietly(t *testing.T) {
	programs.Parallel(t)
	p, pids := haltAtBarrier(t, unhurried...)
	waiting := append(slices.Clone(pids[1:]), p.PID())
	before := cpuTicks(t, waiting)
	<-time.After(500 * time.Millisecond)
	require.LessOrEqual(t, cpuTicks(t, waiting), before+4*len(waiting), "they spin")
	for id := 1; id < len(pids); id++ {
		require.Equal(t, lastStep(p, 0)+1, lastStep(p, id), "process %d is not at the barrier", id)
	}
	requireNoneShared(t, append(pids, p.PID()))
	p.Signal(syscall.SIGTERM)
	_ = syscall.Kill(pids[0], syscall.SIGCONT) // as above
	p.Fails(1, "interrupted")
}

// requireNoneShared checks that no socket is open in two of the processes: each end
// of a pair has one owner. (libcuda has sockets of its own.)
func requireNoneShared(t *testing.T, pids []int) {
	t.Helper()
	owner := map[string]int{}
	for _, pid := range pids {
		for _, target := range programs.OpenFDs(strconv.Itoa(pid)) {
			if strings.HasPrefix(target, "socket:") {
				require.Contains(t, []int{0, pid}, owner[target], "process %d has %s, too", pid, target)
				owner[target] = pid
			}
		}
	}
	require.GreaterOrEqual(t, len(owner), 2*(len(pids)-1), "a socket pair for each member")
}

// cpuTicks is how much CPU time processes have used, in hundredths of a second.
func cpuTicks(t *testing.T, pids []int) (ticks int) {
	t.Helper()
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		_, after, _ := strings.Cut(string(b), ") ")
		fields := strings.Fields(after)
		for _, f := range fields[11:13] { // utime and stime
			n, err := strconv.Atoi(f)
			require.NoError(t, err)
			ticks += n
		}
	}
	return ticks
}

// sampleCalls are the 28 functions that NVIDIA's memMapIPCDrv lists. Those with a
// reason are not seen in a trace.
var sampleCalls = map[string]string{
	"cuDeviceCanAccessPeer": "", "cuMemImportFromShareableHandle": "", "cuModuleLoadDataEx": "", "cuModuleGetFunction": "",
	"cuMemSetAccess": "", "cuModuleLoad": "", "cuStreamCreate": "", "cuMemRelease": "", "cuInit": "", "cuLaunchKernel": "",
	"cuMemcpyDtoHAsync": "", "cuMemCreate": "", "cuDeviceGet": "", "cuCtxDestroy": "", "cuDeviceGetCount": "", "cuMemMap": "",
	"cuMemExportToShareableHandle": "", "cuStreamSynchronize": "", "cuCtxEnablePeerAccess": "", "cuDeviceGetAttribute": "",
	"cuOccupancyMaxActiveBlocksPerMultiprocessor": "", "cuMemGetAllocationGranularity": "", "cuMemAddressFree": "",
	"cuMemUnmap": "", "cuCtxCreate": "", "cuStreamDestroy": "", "cuMemAddressReserve": "",
	"cuCtxSetCurrent": "the crossing makes it before each call that takes a context, in one go with it",
}

var version = regexp.MustCompile(`_v\d$`)

// TestRingTrace: a ring of two devices calls every function of the sample, those
// that have newer versions by these.
func TestRingTrace(t *testing.T) {
	programs.Parallel(t)
	programs.TwoUUIDs(t)
	require.Len(t, sampleCalls, 28)
	called := map[string]bool{}
	for _, more := range [][]string{nil, {"-module", fillKernel(t, fillStore, fillStore)}} {
		p := ring(t, args("GPUFD_TRACE=1"), append(small, more...)...)
		require.Equal(t, 0, p.Wait(), p.Dump())
		require.Len(t, programs.Find(p, "Using CUDA device "), 2)
		for _, name := range programs.Calls(t, p) {
			called[version.ReplaceAllString(name, "")] = true
		}
		require.Equal(t, more == nil, !called["cuModuleLoad"])
	}
	for name, why := range sampleCalls {
		require.Equal(t, why == "", called[name], name)
	}
}
