package soft

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/stretchr/testify/require"
)

// A child is this test program run again as another process.
type child struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start runs a function of children in a process of its own, with more
// environment and files from fd 3 on.
func start(t testing.TB, name string, env []string, files ...*os.File) *child {
	t.Helper()
	c := &child{Cmd: testenv.Child(t.Context(), name)}
	c.Env = append(append(c.Env, "GORACE=atexit_sleep_ms=0"), env...)
	c.Stderr, c.ExtraFiles = os.Stderr, files
	var err error
	c.in, err = c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.out = bufio.NewReader(out)
	require.NoError(t, c.Start())
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// line waits for the child's next line.
func (c *child) line(t testing.TB) string {
	t.Helper()
	s, err := c.out.ReadString('\n')
	require.NoError(t, err)
	return strings.TrimSpace(s)
}

// end lets the child go on, which waits on its input, and waits for its end.
func (c *child) end(t testing.TB) {
	t.Helper()
	c.in.Close()
	require.NoError(t, c.Wait())
}

// kill ends the child with SIGKILL.
func (c *child) kill() {
	c.Process.Kill()
	c.Wait()
}

// output runs a child to its end and returns what it printed.
func output(t testing.TB, name string, env ...string) string {
	t.Helper()
	c := start(t, name, env)
	b, err := io.ReadAll(c.out)
	require.NoError(t, err)
	require.NoError(t, c.Wait())
	return strings.TrimSpace(string(b))
}

// children are what a child can be told to do.
var children = map[string]func(){
	"init":      childInit,
	"uninit":    childUninit,
	"uuids":     childUUIDs,
	"hold":      childHold,
	"import":    childImport,
	"fdonly":    childWait,
	"fill":      childFill,
	"visit":     childVisit,
	"version":   childVersion,
	"memops":    childMemOps,
	"twostores": childOtherStore,
	"gone":      childGone,

	"pool":         childPool,
	"import pool":  childImportPool,
	"poolfd alone": childWait,
}

// must ends a child whose call failed.
func must(r sys.CUresult) {
	if r != sys.CUDA_SUCCESS {
		fmt.Println("failed:", r)
		os.Exit(1)
	}
}

// childWait waits for the parent to close its input.
func childWait() {
	fmt.Println("ready")
	io.Copy(io.Discard, os.Stdin)
}

// childInit prints what cuInit says, and why it does not resolve.
func childInit() {
	_, err := Resolver("cuInit")
	fmt.Println(driver.cuInit(0), err)
}

// childUUIDs prints the visible devices.
func childUUIDs() {
	must(caller.CuInit(0))
	n := new(int32)
	must(caller.CuDeviceGetCount(n))
	for i := range *n {
		u := new(sys.CUuuid)
		must(caller.CuDeviceGetUuid_v2(u, sys.CUdevice(i)))
		fmt.Println("GPU-" + uuidText(u.Bytes))
	}
}

// childHold makes 16 MiB of memory full of sevens and keeps it until its input
// ends or it is killed.
func childHold() {
	c, h, p := childMemory()
	must(c.CuMemsetD8_v2(p, 7, 16*MiB))
	must(c.CuCtxSynchronize())
	childWait()
	must(caller.CuMemUnmap(p, 16*MiB))
	must(caller.CuMemRelease(h))
}

// childMemory makes 16 MiB of memory, mapped.
func childMemory() (sys.Caller, sys.CUmemGenericAllocationHandle, sys.CUdeviceptr) {
	must(caller.CuInit(0))
	var h sys.CUmemGenericAllocationHandle
	must(caller.CuMemCreate(&h, 16*MiB, propOf(0), 0))
	return childMap(h)
}

// childMap maps 16 MiB of memory in a context.
func childMap(h sys.CUmemGenericAllocationHandle) (sys.Caller, sys.CUmemGenericAllocationHandle, sys.CUdeviceptr) {
	var ctx sys.CUcontext
	must(caller.CuDevicePrimaryCtxRetain(&ctx, 0))
	var p sys.CUdeviceptr
	must(caller.CuMemAddressReserve(&p, 16*MiB, 0, 0, 0))
	must(caller.CuMemMap(p, 16*MiB, 0, h, 0))
	must(caller.CuMemSetAccess(p, 16*MiB, accessTo(0, readWrite), 1))
	return caller.With(ctx), h, p
}

// childImport imports fd 3, closes it, prints the first byte, writes 9 there
// and keeps the memory until its input ends or it is killed.
func childImport() {
	must(caller.CuInit(0))
	var h sys.CUmemGenericAllocationHandle
	must(caller.CuMemImportFromShareableHandle(&h, 3, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
	os.NewFile(3, "").Close()
	c, h, p := childMap(h)
	b := make([]byte, 1)
	must(c.CuMemcpyDtoH_v2(at(b), p, 1))
	fmt.Println(b[0])
	must(c.CuMemsetD8_v2(p, 9, 1))
	must(c.CuCtxSynchronize())
	childWait()
	must(caller.CuMemUnmap(p, 16*MiB))
	must(caller.CuMemRelease(h))
}

// childVisit imports fd 3 once it is told to, gives the memory back and prints the first
// byte.
func childVisit() {
	must(caller.CuInit(0))
	fmt.Println("ready")
	bufio.NewReader(os.Stdin).ReadByte()
	var h sys.CUmemGenericAllocationHandle
	must(caller.CuMemImportFromShareableHandle(&h, 3, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
	os.NewFile(3, "").Close()
	c, h, p := childMap(h)
	b := make([]byte, 1)
	must(c.CuMemcpyDtoH_v2(at(b), p, 1))
	must(caller.CuMemUnmap(p, 16*MiB))
	must(caller.CuMemRelease(h))
	fmt.Println(b[0])
}

// childFill creates chunks of 2 MiB until there is no room and prints how
// many.
func childFill() {
	must(caller.CuInit(0))
	n, r := 0, sys.CUDA_SUCCESS
	for ; r == sys.CUDA_SUCCESS && n < 1000; n++ { // a bound, should the driver have none
		var h sys.CUmemGenericAllocationHandle
		r = caller.CuMemCreate(&h, 2*MiB, propOf(0), 0)
	}
	fmt.Println(n-1, r)
	childWait()
}

// childUninit makes calls before cuInit and prints their results.
func childUninit() {
	var n int32
	var ctx sys.CUcontext
	var h sys.CUmemGenericAllocationHandle
	var name *byte
	fmt.Println(
		caller.CuDeviceGetCount(&n), caller.CuDevicePrimaryCtxRetain(&ctx, 0), caller.CuCtxSetCurrent(0),
		caller.CuMemCreate(&h, 2*MiB, propOf(0), 0), caller.CuMemRelease(1), caller.CuStreamSynchronize(0),
		caller.CuMemUnmap(0, 0), caller.CuMemcpyDtoD_v2(0, 0, 0), caller.CuMemImportFromShareableHandle(&h, 0, 1))
	fmt.Println(caller.CuDriverGetVersion(&n), n, caller.CuGetErrorName(1, &name))
}

// childVersion prints which symbols resolve.
func childVersion() {
	for _, s := range []string{"cuMemCreate", "cuCtxGetDevice_v2", "cuDeviceGetUuid_v2", "cuNoSuchThing"} {
		_, err := Resolver(s)
		fmt.Println(s, err)
	}
}

// childOtherStore imports fd 3, which another store made.
func childOtherStore() {
	must(caller.CuInit(0))
	var h sys.CUmemGenericAllocationHandle
	fmt.Println(caller.CuMemImportFromShareableHandle(&h, 3, sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
}

// childMemOps prints whether the first ABI of the memory operations works, and
// the results of a wait, of a write of a kind of its own, and of a batch.
func childMemOps() {
	c, _, p := childMemory()
	v := new(int32)
	must(c.CuDeviceGetAttribute(v, sys.CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1, 0))
	op := new(sys.CUstreamBatchMemOpParams)
	op.WriteValue().Operation, op.WriteValue().Address = sys.CU_STREAM_MEM_OP_WRITE_VALUE_64, p
	fmt.Println(*v, c.CuStreamWaitValue32(0, p, 0, 0), c.CuStreamWriteValue32(0, p, 1, 1), c.CuStreamBatchMemOp(0, 1, op, 0))
	must(c.CuCtxSynchronize())
}
