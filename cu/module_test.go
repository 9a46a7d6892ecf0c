package cu_test

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

const variousFile = "testdata/various.ptx"

// various is the PTX of testdata.
func various(t testing.TB) []byte {
	t.Helper()
	return ok(os.ReadFile(variousFile))(t)
}

// load loads PTX into ctx.
func load(t testing.TB, ctx *cu.Context, text []byte) *cu.Module {
	t.Helper()
	return untilEnd(t, ok(ctx.LoadModule(text))(t))
}

// function is a kernel of testdata in ctx.
func function(t testing.TB, ctx *cu.Context, name string) *cu.Function {
	t.Helper()
	return ok(load(t, ctx, various(t)).Function(name))(t)
}

// one is a launch of one thread.
var one = cu.LaunchConfig{Grid: cu.Dim3{X: 1}, Block: cu.Dim3{X: 1}}

// orTooOld requires err to be none, or that the driver has not got the function,
// which it reports. symbol has to be missing indeed.
func orTooOld(t testing.TB, drv *cu.Driver, symbol string, err error) (tooOld bool) {
	t.Helper()
	if tooOld = lacks(t, drv, symbol, err); !tooOld {
		require.NoError(t, err)
	}
	return tooOld
}

// lacks reports whether the driver has not got the function, which err has to
// say then.
func lacks(t testing.TB, drv *cu.Driver, symbol string, err error) bool {
	t.Helper()
	if drv.Caller().Library().Has(symbol) {
		return false
	}
	var missing *cu.SymbolError
	require.ErrorAs(t, err, &missing)
	return true
}

// words reads n integers.
func words(t testing.TB, ctx *cu.Context, p cu.DevicePtr, n int) []uint32 {
	t.Helper()
	return readBack[uint32](t, ctx, p, n)
}

func TestModuleFromMemoryAndFromFile(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	out := alloc(t, ctx, 4)
	text := various(t)
	fromFile := ok(ctx.LoadModuleFile(variousFile))(t)
	for name, m := range map[string]*cu.Module{
		"memory": load(t, ctx, append(text, "more"...)[:len(text)]), "with a zero": load(t, ctx, append(text, 0)), "file": fromFile,
	} {
		require.Equal(t, ctx, m.Context())
		f := ok(m.Function("count"))(t, name)
		require.Equal(t, "count", f.Name())
		require.NoError(t, f.Launch(ctx.NullStream(), one, out), name)
		require.Equal(t, []uint32{8}, words(t, ctx, out.Ptr(), 1), name)

		p, size, err := m.Global("counter")
		require.NoError(t, err)
		require.EqualValues(t, 4, size)
		require.Equal(t, []uint32{8}, words(t, ctx, p, 1), name)
		require.NoError(t, cu.CopyToDevice(ctx, p, []uint32{40}))
		require.NoError(t, f.Launch(ctx.NullStream(), cu.LaunchConfig{Grid: cu.Dim3{X: 2}, Block: cu.Dim3{X: 3}}, out), name)
		require.Equal(t, []uint32{46}, words(t, ctx, p, 1), "six threads")
		require.NoError(t, m.Close())
	}
}

func TestModuleListsItsFunctions(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m := load(t, ctx, various(t))
	fs, err := m.Functions()
	if orTooOld(t, ctx.Device().Driver(), "cuModuleEnumerateFunctions", err) {
		return
	}
	var names []string
	for _, f := range fs {
		names = append(names, f.Name())
	}
	require.ElementsMatch(t, []string{"store", "count", "nothing", "shared"}, names)
	at := slices.Index(names, "nothing")
	require.NoError(t, fs[at].Launch(ctx.NullStream(), one))
	require.Empty(t, ok(load(t, ctx, []byte(".version 7.4\n.target sm_75\n.address_size 64\n")).Functions())(t))
}

func TestModuleHasNoSuchThing(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	m := load(t, ctx, various(t))
	require.ErrorIs(t, errOf(m.Function("counter")), cu.ErrNotFound)
	require.ErrorIs(t, errOf(m.Function("")), cu.ErrInvalidValue)
	_, _, err := m.Global("none")
	require.ErrorIs(t, err, cu.ErrNotFound)
	require.ErrorIs(t, errOf(ctx.LoadModuleFile(filepath.Join(t.TempDir(), "none.ptx"))), cu.ErrFileNotFound)
}

// The driver would wait for what is no file.
func TestModuleFromWhatIsNoFile(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, unix.Mkfifo(pipe, 0o600))
	for _, path := range []string{pipe, dir, os.DevNull} {
		_, err1 := ctx.LoadModuleFile(path)
		_, err2 := ctx.Device().Driver().LoadLibraryFile(path)
		for _, err := range []error{err1, err2} {
			require.ErrorIs(t, err, cu.ErrInvalidValue)
			require.ErrorContains(t, err, path+" is not a regular file")
		}
	}
}

// Names and paths with a zero are not those that C takes them for.
func TestZeroInName(t *testing.T) {
	spy, drv, _, ctx := spiedContext(t)
	m := load(t, ctx, various(t))
	g := newGraph(t, ctx)
	dot := filepath.Join(t.TempDir(), "dot")
	_, err1 := m.Function("nothing\x00")
	_, _, err2 := m.Global("counter\x00s")
	_, err3 := ctx.LoadModuleFile(variousFile + "\x00")
	_, err4 := drv.LoadLibraryFile(variousFile + "\x00")
	all := map[string]error{"Function": err1, "Global": err2, "LoadModuleFile": err3, "LoadLibraryFile": err4, "WriteDOT": g.WriteDOT(dot + "\x00")}
	lib, err := drv.LoadLibrary(various(t))
	if !lacks(t, drv, "cuLibraryLoadData", err) {
		require.NoError(t, err)
		_, all["Kernel"] = lib.Kernel("nothing\x00")
		_, _, all["Library.Global"] = lib.Global(ctx, "counter\x00")
		require.NoError(t, lib.Close())
	}
	for name, err := range all {
		require.ErrorIs(t, err, cu.ErrInvalidValue, name)
		require.ErrorContains(t, err, "contains a zero byte", name)
	}
	require.NoFileExists(t, dot)
	id := ok(ctx.Device().PCIBusID())(t)
	_, err = drv.DeviceByPCIBusID(id + "\x00")
	var none *cu.NoDeviceError
	require.ErrorAs(t, err, &none)
	require.Zero(t, spy.count("cuModuleGetFunction")+spy.count("cuModuleLoad")+spy.count("cuDeviceGetByPCIBusId"))
}

// The log names the line, which is what the driver's result does not.
func TestBuildErrorHasTheLog(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	bad := ".version 7.4\n.target sm_75\n.address_size 64\n.visible .entry f()\n{\n\tfrobnicate.u32 %r1;\n\tret;\n}\n"
	_, err := ctx.LoadModule([]byte(bad))
	require.ErrorIs(t, err, cu.ErrInvalidPTX)
	var build *cu.BuildError
	require.ErrorAs(t, err, &build)
	require.Contains(t, build.Log, "line 6")
	result, log, _ := strings.Cut(err.Error(), "\n")
	require.Contains(t, result, "cuModuleLoadDataEx: CUDA_ERROR_INVALID_PTX (218)")
	require.Contains(t, log, build.Log)

	_, err = ctx.LoadModule([]byte(strings.Replace(string(various(t)), ".version 7.4", ".version 99.9", 1)))
	require.ErrorIs(t, err, cu.ErrUnsupportedPTXVersion)
	for _, text := range []string{"", " \n", "no PTX"} {
		require.ErrorIs(t, errOf(ctx.LoadModule([]byte(text))), cu.ErrInvalidImage, "%q", text)
	}
}

func TestJITOptions(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	text := various(t)
	major, minor, err := ctx.Device().ComputeCapability()
	require.NoError(t, err)
	for name, opts := range map[string][]cu.JITOption{
		"registers and level": {cu.JITMaxRegisters(32), cu.JITOptimization(0)},
		"threads per block":   {cu.JITThreadsPerBlock(256)},
		"target":              {cu.JITTarget(uint32(major), uint32(minor))},
		"debugger":            {cu.JITDebugInfo()},
		"profiler":            {cu.JITLineInfo(), cu.JITVerboseLog()},
		"cache":               {cu.JITCache(cu.JITCacheL2)},
	} {
		m := ok(ctx.LoadModule(text, opts...))(t, name)
		require.NoError(t, ok(m.Function("count"))(t).Launch(ctx.NullStream(), one, alloc(t, ctx, 4)), name)
		t.Logf("%s: %q", name, m.Log())
		require.NoError(t, m.Close())
	}
}

// A truncated image is not given to the driver, which would read past its end.
func TestImagesThatAreCutOff(t *testing.T) {
	spy, drv, _, ctx := spiedContext(t)
	for _, function := range []string{"cuModuleLoadDataEx", "cuLibraryLoadData"} {
		spy.Fail(function, cu.ErrOutOfMemory)
	}
	le := binary.LittleEndian
	elf := make([]byte, 64+2*64+100)
	copy(elf, "\x7fELF\x02\x01\x01")
	le.PutUint64(elf[40:], 64) // section headers
	le.PutUint16(elf[58:], 64) // of this size
	le.PutUint16(elf[60:], 2)  // so many
	le.PutUint64(elf[64+64+24:], 192)
	le.PutUint64(elf[64+64+32:], 101) // one byte too long
	fat := make([]byte, 16+100)
	le.PutUint32(fat, 0xba55ed50)
	le.PutUint16(fat[6:], 16)
	le.PutUint64(fat[8:], 101)
	far := append([]byte(nil), fat...)
	le.PutUint64(far[8:], 1<<64-8)
	wrapper := make([]byte, 24)
	le.PutUint32(wrapper, 0x466243b1)
	for name, image := range map[string][]byte{
		"section": elf, "header": elf[:150], "start": elf[:63], "magic": elf[:4],
		"fatbin": fat, "overflow": far, "wrapper": wrapper,
	} {
		require.ErrorIs(t, errOf(ctx.LoadModule(image)), cu.ErrInvalidImage, name)
		require.ErrorIs(t, errOf(drv.LoadLibrary(image)), cu.ErrInvalidImage, name)
	}
	require.ErrorIs(t, errOf(ctx.LoadModule(various(t))), cu.ErrOutOfMemory, "now the driver saw it")
	require.ErrorIs(t, errOf(drv.LoadLibrary(various(t))), cu.ErrOutOfMemory)
}

func TestFunctionAttributes(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	f := function(t, ctx, "store")
	a := ok(f.Attributes())(t)
	require.Positive(t, a.MaxThreadsPerBlock)
	require.Positive(t, a.Registers)
	require.Zero(t, a.Shared)
	require.Equal(t, 75, a.PTXVersion)
	require.GreaterOrEqual(t, a.BinaryVersion, 75)
	require.Equal(t, a.Registers, ok(f.Attribute(cu.FunctionRegisters))(t))
	require.ErrorIs(t, errOf(f.Attribute(1000)), cu.ErrInvalidValue)
	require.ErrorIs(t, f.SetAttribute(cu.FunctionRegisters, 1), cu.ErrInvalidValue)
	require.ErrorIs(t, f.SetAttribute(cu.FunctionMaxDynamicShared, 1<<32), cu.ErrInvalidValue)
	require.NoError(t, f.SetCacheConfig(cu.CachePreferL1))
	require.Equal(t, "CU_FUNC_ATTRIBUTE_NUM_REGS", cu.FunctionRegisters.String())
}

// More shared memory than 48 KiB has to be asked for.
func TestDynamicSharedMemory(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	f := function(t, ctx, "shared")
	out := alloc(t, ctx, 4)
	most := ok(ctx.Device().Attribute(cu.AttributeMaxSharedMemoryPerBlockOptin))(t)
	require.Greater(t, most, 48<<10)
	cfg := one
	cfg.Shared = 48 << 10
	require.NoError(t, f.Launch(ctx.NullStream(), cfg, out, cfg.Shared-4, uint32(5)))
	require.Equal(t, []uint32{5}, words(t, ctx, out.Ptr(), 1))
	cfg.Shared = uint32(most)
	require.ErrorIs(t, f.Launch(ctx.NullStream(), cfg, out, cfg.Shared-4, uint32(6)), cu.ErrInvalidValue)
	require.NoError(t, f.SetMaxDynamicShared(uint32(most)))
	require.Equal(t, most, ok(f.Attributes())(t).MaxDynamicShared)
	require.NoError(t, f.Launch(ctx.NullStream(), cfg, out, cfg.Shared-4, uint32(7)))
	require.Equal(t, []uint32{7}, words(t, ctx, out.Ptr(), 1))
	require.ErrorIs(t, f.SetMaxDynamicShared(uint32(most)+1), cu.ErrInvalidValue)
}

func TestOccupancy(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	f := function(t, ctx, "shared")
	dev := ctx.Device()
	processors, err1 := dev.Attribute(cu.AttributeMultiprocessorCount)
	perSM, err2 := dev.Attribute(cu.AttributeMaxThreadsPerMultiprocessor)
	require.NoError(t, err1)
	require.NoError(t, err2)
	n := ok(f.MaxActiveBlocks(256, 0))(t)
	require.Equal(t, perSM/256, n)
	less := ok(f.MaxActiveBlocks(256, 40<<10))(t)
	require.Less(t, less, n, "shared memory")
	require.Positive(t, less)
	threads, blocks, err := f.SuggestedBlock(0, 0)
	require.NoError(t, err)
	require.Equal(t, processors*perSM, threads*blocks)
	threads, _, err = f.SuggestedBlock(0, 100)
	require.NoError(t, err)
	require.LessOrEqual(t, threads, 100)
	for _, threads := range []int{0, 1<<32 + 256} {
		require.ErrorIs(t, errOf(f.MaxActiveBlocks(threads, 0)), cu.ErrInvalidValue)
	}
	_, _, err = f.SuggestedBlock(0, 1<<32)
	require.ErrorIs(t, err, cu.ErrInvalidValue)
}

func TestLibraryIsForAllContexts(t *testing.T) {
	spy, drv, dev := spied(t)
	lib, err := drv.LoadLibrary(various(t))
	if orTooOld(t, drv, "cuLibraryLoadData", err) {
		return
	}
	k := ok(lib.Kernel("count"))(t)
	require.Equal(t, "count", k.Name())
	require.ErrorIs(t, errOf(lib.Kernel("counter")), cu.ErrNotFound)

	primary := cutest.Context(t, dev)
	apart := untilEnd(t, ok(dev.NewContext(cu.SchedAuto))(t))
	for _, ctx := range []*cu.Context{primary, apart} { // each has a counter of its own
		f := ok(k.Function(ctx))(t)
		out := alloc(t, ctx, 4)
		require.NoError(t, f.Launch(ctx.NullStream(), one, out))
		require.Equal(t, []uint32{8}, words(t, ctx, out.Ptr(), 1))
		p, size, err := lib.Global(ctx, "counter")
		require.NoError(t, err)
		require.EqualValues(t, 4, size)
		require.Equal(t, []uint32{8}, words(t, ctx, p, 1))
	}
	f := ok(k.Function(primary))(t)
	ks, err := lib.Kernels()
	if !orTooOld(t, drv, "cuLibraryEnumerateKernels", err) {
		require.Len(t, ks, 4)
		require.NotEmpty(t, ks[0].Name())
	}
	require.NoError(t, primary.Synchronize(soon(t)))
	require.NoError(t, lib.Close())
	require.NoError(t, lib.Close())
	require.Equal(t, 1, spy.count("cuLibraryUnload"))
	require.ErrorIs(t, f.Launch(apart.NullStream(), one, cu.DevicePtr(0)), cu.ErrClosed)
	require.ErrorIs(t, errOf(k.Function(primary)), cu.ErrClosed)
	require.ErrorIs(t, errOf(lib.Kernel("count")), cu.ErrClosed)
}

func TestLibraryFromFile(t *testing.T) {
	drv := cutest.Driver(t)
	lib, err := drv.LoadLibraryFile(variousFile)
	if orTooOld(t, drv, "cuLibraryLoadFromFile", err) {
		return
	}
	k := ok(lib.Kernel("nothing"))(t)
	ctx := cutest.Context(t, firstDevice(t, drv))
	require.NoError(t, ok(k.Function(ctx))(t).Launch(ctx.NullStream(), one))
	require.NoError(t, ctx.Synchronize(soon(t)))
	require.NoError(t, lib.Close())
	require.ErrorIs(t, errOf(drv.LoadLibraryFile(filepath.Join(t.TempDir(), "none"))), cu.ErrFileNotFound)
}

// The log of a library is that of its first kernel, if the driver compiles no
// earlier.
func TestLibraryBuildErrorHasTheLog(t *testing.T) {
	drv, _, ctx := driverContext(t)
	lib, err := drv.LoadLibrary([]byte(strings.Replace(string(various(t)), "add.u32", "frobnicate.u32", 1)))
	if err == nil {
		defer func() { require.NoError(t, lib.Close()) }()
		var k *cu.Kernel
		if k, err = lib.Kernel("count"); err == nil {
			_, err = k.Function(ctx)
		}
	} else if lacks(t, drv, "cuLibraryLoadData", err) {
		return
	}
	require.ErrorIs(t, err, cu.ErrInvalidPTX)
	var build *cu.BuildError
	require.ErrorAs(t, err, &build)
	require.Contains(t, build.Log, "frobnicate")
}

// With a driver that lacks a function the error names it.
func TestModulesWithoutSymbols(t *testing.T) {
	drv := cutest.Driver(t, without(t, "cuLibraryLoadData", "cuFuncGetParamInfo", "cuModuleGetFunctionCount", "cuLaunchKernelEx"))
	_, err := drv.LoadLibrary(various(t))
	var missing *cu.SymbolError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, 12000, missing.Needs)
	ctx := cutest.Context(t, firstDevice(t, drv))
	m := load(t, ctx, various(t))
	require.ErrorIs(t, errOf(m.Functions()), cu.ErrSymbolMissing)
	f := ok(m.Function("count"))(t)
	require.ErrorIs(t, errOf(f.Params()), cu.ErrSymbolMissing)
	out := alloc(t, ctx, 4)
	require.NoError(t, f.Launch(ctx.NullStream(), one, out), "unchecked")
	require.Equal(t, []uint32{8}, words(t, ctx, out.Ptr(), 1))
	cfg := one
	cfg.Cooperative = true
	require.NoError(t, f.Launch(ctx.NullStream(), cfg, out))
	cfg.Priority = -1
	require.ErrorIs(t, f.Launch(ctx.NullStream(), cfg, out), cu.ErrSymbolMissing)
}
