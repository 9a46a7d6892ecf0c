package cutest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/testenv/leak"
)

// plantEnv makes the test binary run a single planted fault under Main.
const plantEnv = "GPUFD_PLANT"

// A plant leaves something behind, and is found in a report by these words.
type plant struct {
	leave func(*cu.Device) error
	words []string
}

const pkg = "github.com/gpufd/gpufd/cu/cutest."

var plants = map[string]plant{
	"nothing":    {func(*cu.Device) error { return nil }, nil},
	"descriptor": {leaveDescriptor, []string{"1 more of /dev/zero than before", "not made by a package of gpufd"}},
	"exported":   {leaveExport, []string{"than before; descriptor", "github.com/gpufd/gpufd/cu.(*MemHandle).Export", pkg + "leaveExport"}},
	"goroutine":  {leaveGoroutine, []string{"a goroutine runs", "created by " + pkg + "leaveGoroutine"}},
	"lost":       {leaveLost, []string{"planted was lost without Close", pkg + "leaveLost"}},
	"misuse":     {leaveMisuse, []string{"cuMemUnmap"}},

	"memory handle": {leaveMemory, []string{"physical memory 0x", "of 2097152 bytes", pkg + "leaveMemory"}},
	"import":        {leaveImport, []string{"physical memory 0x", pkg + "leaveImport"}},
	"reservation":   {leaveReservation, []string{"reserved address space 0x", "of 4194304 bytes", pkg + "leaveReservation"}},
	"mapping":       {leaveMapping, []string{"mapping 0x", "of 2097152 bytes", pkg + "leaveMapping"}},
	"context":       {leaveContext, []string{"reference to the primary context of device 0x0", pkg + "leaveContext"}},
	"stream":        {leaveStream, []string{"stream 0x", pkg + "leaveStream"}},
	"plain memory":  {leavePlainMemory, []string{"device memory 0x", "of 1048576 bytes", pkg + "leavePlainMemory"}},
	"soft memory":   {leaveMemory, []string{"2097152 bytes of device 0 are taken"}},
}

// impatient shortens the wait of the leak check in runs that leave something behind.
const impatient = leak.PatienceEnv + "=300ms"

// A planted leak fails a whole run although its tests pass, and a child without complaints.
func TestPlantedLeaksFailTheRun(t *testing.T) {
	var runs []*planted
	for name := range plants {
		switch {
		case name != "misuse" && name != "soft memory":
			runs = append(runs, begin(t, name, ownRun(t)), begin(t, name, Child(t.Context(), "plants")))
		case Kind() == cu.Soft: // which alone tells; a child does not, as they are the parent's, too
			runs = append(runs, begin(t, name, ownRun(t)))
		}
	}
	for _, r := range runs {
		t.Run(r.name, r.requireFound)
	}
}

// A planted process leaves the plant of that name behind.
type planted struct {
	name string
	cmd  *exec.Cmd
	out  bytes.Buffer
}

func begin(t *testing.T, name string, cmd *exec.Cmd) *planted {
	t.Helper()
	p := &planted{name: name, cmd: cmd}
	cmd.Env = append(cmd.Env, plantEnv+"="+name)
	if plants[name].words != nil {
		cmd.Env = append(cmd.Env, impatient)
	}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	require.NoError(t, cmd.Start())
	return p
}

func (p *planted) requireFound(t *testing.T) {
	_ = p.cmd.Wait() // its ProcessState says it all
	words, code := plants[p.name].words, p.cmd.ProcessState.ExitCode()
	if words == nil {
		require.Zero(t, code, "%s", &p.out)
		return
	}
	require.Equal(t, 1, code, "%s", &p.out)
	require.Contains(t, p.out.String(), "leak: the tests passed but left behind:\n")
	for _, w := range words {
		require.Contains(t, p.out.String(), w)
	}
}

// ownRun is a run of TestPlant that has the software driver's memory for itself.
func ownRun(t *testing.T) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestPlant$", "-test.count=1")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GPUFD_SOFT_DIR=") })
	return cmd
}

// TestPlant is for TestPlantedLeaksFailTheRun alone.
func TestPlant(t *testing.T) {
	if name := os.Getenv(plantEnv); name != "" {
		require.NoError(t, plants[name].leave(Device(t)))
	}
}

var children = Children{
	"plants": func() error {
		drv, err := Open()
		if err != nil {
			return err
		}
		return plants[os.Getenv(plantEnv)].leave(drv.Devices()[0])
	},
	"leaves on purpose": func() error {
		ExpectLeaks()
		return leaveDescriptor(nil)
	},
	"complains and leaves": func() error { return errors.Join(leaveDescriptor(nil), errors.New("a complaint")) },
}

func TestChildMayExpectLeaks(t *testing.T) {
	out, err := Child(t.Context(), "leaves on purpose").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, out)
}

// A report comes in any case.
func TestChildThatFailsIsLookedAtToo(t *testing.T) {
	cmd := Child(t.Context(), "complains and leaves")
	cmd.Env = append(cmd.Env, impatient)
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "a complaint\n")
	require.Contains(t, string(out), "leak: the tests failed, and left behind:\n  1 more of /dev/zero")
}

// kept is what was planted: the garbage collector is not to find it.
var kept []any

func leaveDescriptor(*cu.Device) error {
	f, err := os.Open("/dev/zero")
	kept = append(kept, f)
	return err
}

func leaveExport(dev *cu.Device) error {
	m := get(dev.CreateMemory(2<<20, cu.HandleFD))
	defer m.Close()
	f, err := m.Export()
	kept = append(kept, f)
	return err
}

func leaveGoroutine(*cu.Device) error {
	go func() { <-make(chan int) }()
	return nil
}

func leaveLost(dev *cu.Device) error {
	dev.Driver().ReportLeak(cu.Leak{What: "planted", Stack: cu.Here(-1)})
	return nil
}

func leaveMisuse(dev *cu.Device) error {
	drv := dev.Driver()
	p, err := drv.ReserveAddress(2<<20, 0, 0)
	if err == nil && drv.Unmap(p, 2<<20) == nil {
		err = errors.New("nothing was mapped, and was unmapped")
	}
	return errors.Join(err, drv.FreeAddress(p, 2<<20))
}

func leaveMemory(dev *cu.Device) error {
	m, err := dev.CreateMemory(2<<20, cu.HandleFD)
	kept = append(kept, m)
	return err
}

func leaveImport(dev *cu.Device) error {
	m := get(dev.CreateMemory(2<<20, cu.HandleFD))
	defer m.Close()
	f := get(m.Export())
	defer f.Close()
	imported, err := dev.Driver().ImportMemory(f, 2<<20)
	kept = append(kept, imported)
	return err
}

func leaveReservation(dev *cu.Device) error {
	_, err := dev.Driver().ReserveAddress(4<<20, 0, 0)
	return err
}

func leaveMapping(dev *cu.Device) error {
	m := get(dev.CreateMemory(2<<20, cu.HandleFD))
	defer m.Close()
	p := get(dev.Driver().ReserveAddress(2<<20, 0, 0))
	return dev.Driver().Map(p, 2<<20, 0, m)
}

func leaveContext(dev *cu.Device) error {
	ctx, err := dev.PrimaryContext()
	kept = append(kept, ctx)
	return err
}

func leaveStream(dev *cu.Device) error {
	ctx := get(dev.PrimaryContext())
	s, err := ctx.NewStream()
	kept = append(kept, ctx, s)
	return err
}

func leavePlainMemory(dev *cu.Device) error {
	ctx := get(dev.PrimaryContext())
	m, err := ctx.Alloc(1 << 20)
	kept = append(kept, ctx, m)
	return err
}

// must ends a child that cannot go on.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

func get[T any](v T, err error) T {
	must(err)
	return v
}
