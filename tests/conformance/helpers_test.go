package conformance

// How to add a check
//
// In this process, where a call can do no harm: one line each,
//
//	check(t, "an occupied range", invalid, c.CuMemMap(p, unit, 0, h, 0))
//
// with what the H200 answers. Make what the calls need with the helpers below,
// which give it back when the test ends. Around checks of a function that came
// after CUDA 11.4, ask has(t, "cuNew", 1), which skips so many checks where the
// driver lacks it.
//
// In a process of its own, where a call may crash, hang, poison the context or
// change what the whole process shares: a row of a sheet,
//
//	var onRelease = sheet("release", row{
//		what: "no handle", want: crashes,
//		ask: func(t testing.TB) any { return raw(t).CuMemRelease(0xdead) },
//	})
//
//	func TestD4_Release(t *testing.T) { onRelease.check(t) }
//
// The same helpers work in there. The rows of a sheet share one process until
// one crashes or hangs; with alone in place of sheet each has its own.
//
// If the software driver is to answer otherwise, give the check a name
// (differs in place of check, or id and soft in a row) and add the name, both
// answers and the reason to the table in docs/driver-facts.md.
//
// The name of a test begins with the row of docs/driver-facts.md that it asks.

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
)

// Sizes. unit is what sizes and addresses of cuMemCreate memory are multiples
// of (D14).
const (
	KiB  = 1 << 10
	MiB  = 1 << 20
	GiB  = 1 << 30
	TiB  = 1 << 40
	unit = 2 * MiB
)

// The results that come most often.
const (
	success      = sys.CUDA_SUCCESS
	invalid      = sys.CUDA_ERROR_INVALID_VALUE
	noContext    = sys.CUDA_ERROR_INVALID_CONTEXT
	noDevice     = sys.CUDA_ERROR_INVALID_DEVICE
	noHandle     = sys.CUDA_ERROR_INVALID_HANDLE
	notSupported = sys.CUDA_ERROR_NOT_SUPPORTED
	destroyed    = sys.CUDA_ERROR_CONTEXT_IS_DESTROYED
)

// Kinds of handle and of access.
const (
	handleFD  = sys.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
	none      = sys.CU_MEM_ACCESS_FLAGS_PROT_NONE
	readOnly  = sys.CU_MEM_ACCESS_FLAGS_PROT_READ
	readWrite = sys.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
)

// word spells an answer as docs/driver-facts.md does: results without what all
// begin with.
func word(answer any) string {
	return strings.TrimPrefix(strings.TrimPrefix(fmt.Sprint(answer), "CUDA_"), "ERROR_")
}

// check asks whether an answer is the one that both drivers give. It goes on if
// it is not.
func check(t testing.TB, what string, want, have any) {
	t.Helper()
	tally.count()
	compare(t, what, want, have)
}

// differs is check where the two drivers answer differently. id is the
// difference's name in docs/driver-facts.md.
func differs(t testing.TB, id, what string, onCUDA, onSoft, have any) {
	t.Helper()
	tally.count()
	tally.meet(t, difference{id: id, cuda: word(onCUDA), soft: word(onSoft)})
	want := onCUDA
	if cutest.Kind() == cu.Soft {
		want = onSoft
	}
	compare(t, what, want, have)
}

func compare(t testing.TB, what string, want, have any) {
	t.Helper()
	if !answers(want, have) {
		t.Errorf("%s: the answer is %s, expected %s", what, word(have), word(want))
		return
	}
	t.Logf("%s: %s", what, word(have))
}

// answers reports whether an answer is one that was expected. A child that could
// not ask has none.
func answers(want, have any) bool {
	if want == either {
		return word(have) == word(success) || word(have) == word(invalid)
	}
	if want == varies {
		return word(have) != word(success) && !strings.HasPrefix(word(have), couldNotAsk)
	}
	return word(want) == word(have)
}

// skip counts n checks that cannot be made here.
func skip(t testing.TB, n int, why string) {
	t.Helper()
	tally.skip(n)
	t.Logf("%d checks skipped: %s", n, why)
}

// ok ends the test unless a call that is not what is asked about succeeds.
func ok(t testing.TB, r sys.CUresult) {
	t.Helper()
	require.Equal(t, success, r, "%v", r)
}

// soon is a deadline for what should happen at once. It is long because
// machines are slow, and costs nothing when all is well.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// unopened returns the calls of the driver before cuInit.
func unopened(t testing.TB) sys.Caller {
	t.Helper()
	r := sys.Resolver(soft.Resolver)
	if cutest.Kind() == cu.CUDA {
		var err error
		if r, _, err = sys.OpenCUDA(); err != nil {
			cutest.SkipWithoutGPU(t, err.Error())
		}
	}
	return sys.NewLibrary(r).Caller()
}

// driver is opened once: opening takes the thread's current context away.
var driver = sync.OnceValues(func() (*cu.Driver, error) { return cutest.Open() })

// raw returns the calls of the driver, without a context.
func raw(t testing.TB) sys.Caller {
	t.Helper()
	d, err := driver()
	if err != nil {
		cutest.SkipWithoutGPU(t, err.Error())
	}
	return d.Caller()
}

// inContext returns the calls of the driver in the first device's primary
// context.
func inContext(t testing.TB) sys.Caller {
	t.Helper()
	return inContextOf(t, 0)
}

func inContextOf(t testing.TB, dev sys.CUdevice) sys.Caller {
	t.Helper()
	c := raw(t)
	ctx := new(sys.CUcontext)
	ok(t, c.CuDevicePrimaryCtxRetain(ctx, dev))
	t.Cleanup(func() { ok(t, c.CuDevicePrimaryCtxRelease_v2(dev)) })
	return c.With(*ctx)
}

// withoutContext returns the calls of the driver on a thread that the test
// keeps to itself and that has no current context.
func withoutContext(t testing.TB) sys.Caller {
	t.Helper()
	c := raw(t)
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	for {
		ctx := new(sys.CUcontext)
		ok(t, c.CuCtxGetCurrent(ctx))
		if *ctx == 0 {
			return c
		}
		ok(t, c.CuCtxPopCurrent_v2(ctx))
	}
}

// hasDevices skips n checks where there are fewer devices.
func hasDevices(t testing.TB, devices int32, n int) bool {
	t.Helper()
	count := new(int32)
	ok(t, raw(t).CuDeviceGetCount(count))
	if *count < devices {
		skip(t, n, fmt.Sprintf("they take %d devices", devices))
	}
	return *count >= devices
}
