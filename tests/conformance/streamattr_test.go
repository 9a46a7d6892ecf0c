package conformance

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/sys"
)

func TestC28_StreamID(t *testing.T) {
	c := inContext(t)
	if !c.Library().Has("cuStreamGetId") {
		skip(t, 5, "cuStreamGetId is of CUDA 12.0")
		return
	}
	id := func(s sys.CUstream) uint64 {
		id := new(uint64)
		ok(t, c.CuStreamGetId(s, id))
		return *id
	}
	check(t, "nowhere to put it", invalid, c.CuStreamGetId(0, nil))
	check(t, "stream 0 is the legacy stream", true, id(0) == id(sys.CU_STREAM_LEGACY))
	check(t, "the thread's stream is another", true, id(0) != id(sys.CU_STREAM_PER_THREAD))
	s := new(sys.CUstream)
	ok(t, c.CuStreamCreate(s, 0))
	first := id(*s)
	check(t, "it stays", first, id(*s))
	ok(t, c.CuStreamDestroy_v2(*s))
	check(t, "the next has another", true, first != id(stream(t, c)))
}

func TestC28_StreamContext(t *testing.T) {
	c := inContext(t)
	if !c.Library().Has("cuStreamGetCtx_v2") {
		skip(t, 5, "cuStreamGetCtx_v2 is of CUDA 12.5")
		return
	}
	s := stream(t, c)
	ctx, green := new(sys.CUcontext), new(sys.CUgreenCtx)
	*green = 77
	check(t, "of a stream", success, c.CuStreamGetCtx_v2(s, ctx, green))
	check(t, "is its context", true, *ctx == c.Context())
	check(t, "and no green one", 0, *green)
	check(t, "without the green one", success, c.CuStreamGetCtx_v2(s, ctx, nil))
	check(t, "without the context", success, c.CuStreamGetCtx_v2(s, nil, green))
}

func TestC28_StreamAttributes(t *testing.T) {
	c := inContext(t)
	s, other := stream(t, c), stream(t, c)
	v := new(sys.CUstreamAttrValue)
	ok(t, c.CuStreamGetAttribute(s, sys.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, v))
	check(t, "the policy is none", ^sys.CUsynchronizationPolicy(0), *v.SyncPolicy()) // which cannot be set
	for _, x := range []struct {
		attr     uint32
		get, set sys.CUresult
	}{
		{0, invalid, invalid}, {1, success, success}, {2, invalid, invalid}, {3, success, invalid}, {4, invalid, invalid},
		{6, invalid, invalid}, {8, success, success}, {9, success, success}, {10, success, success}, {13, invalid, invalid}, {99, invalid, invalid},
	} {
		attr := sys.CUstreamAttrID(x.attr)
		*v = sys.CUstreamAttrValue{}
		check(t, fmt.Sprint("get ", attr), x.get, c.CuStreamGetAttribute(s, attr, v))
		check(t, fmt.Sprint("set ", attr), x.set, c.CuStreamSetAttribute(s, attr, v))
	}
	priority := func(s sys.CUstream) int32 {
		p := new(int32)
		ok(t, c.CuStreamGetPriority(s, p))
		return *p
	}
	for _, x := range []struct {
		set  int32
		want sys.CUresult
		is   int32
	}{{-3, success, -3}, {-100, success, -5}, {9, success, 0}} {
		*v.Priority() = x.set
		check(t, fmt.Sprint("set the priority ", x.set), x.want, c.CuStreamSetAttribute(s, sys.CU_LAUNCH_ATTRIBUTE_PRIORITY, v))
		check(t, "the priority is", x.is, priority(s))
	}
	for p, want := range map[sys.CUsynchronizationPolicy]sys.CUresult{0: invalid, 1: success, 2: success, 3: success, 4: success, 5: invalid} {
		*v.SyncPolicy() = p
		check(t, fmt.Sprint("set the policy ", p), want, c.CuStreamSetAttribute(s, sys.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, v))
	}
	*v.SyncPolicy() = sys.CU_SYNC_POLICY_YIELD
	ok(t, c.CuStreamSetAttribute(s, sys.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, v))
	*v.Priority() = -2
	ok(t, c.CuStreamSetAttribute(s, sys.CU_LAUNCH_ATTRIBUTE_PRIORITY, v))
	check(t, "copy", success, c.CuStreamCopyAttributes(other, s))
	check(t, "priority of the copy", -2, priority(other))
	*v = sys.CUstreamAttrValue{}
	ok(t, c.CuStreamGetAttribute(other, sys.CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, v))
	check(t, "policy of the copy", sys.CU_SYNC_POLICY_YIELD, *v.SyncPolicy())
	check(t, "copy to stream 0", success, c.CuStreamCopyAttributes(0, s))
	check(t, "priority of stream 0", -2, priority(0))
	*v.Priority() = 0
	check(t, "set the priority of stream 0", success, c.CuStreamSetAttribute(0, sys.CU_LAUNCH_ATTRIBUTE_PRIORITY, v))
	check(t, "it is", 0, priority(0))
}

func TestC28_NoStreamAttributes(t *testing.T) { noStreamAttributes.check(t) }

var noStreamAttributes = sheet("no stream attributes",
	row{what: "get nowhere", want: crashes, id: "wild-pointer", soft: invalid, ask: func(t testing.TB) any {
		return inContext(t).CuStreamGetAttribute(0, sys.CU_LAUNCH_ATTRIBUTE_PRIORITY, nil)
	}},
	row{what: "set nothing", want: crashes, id: "wild-pointer", soft: invalid, ask: func(t testing.TB) any {
		return inContext(t).CuStreamSetAttribute(0, sys.CU_LAUNCH_ATTRIBUTE_PRIORITY, nil)
	}},
)

// posted is a semaphore of the C library. The driver knows it by a number: it
// must lie where the runtime never moves it, as it does stacks.
var posted [32]byte

func TestC28_HostFunctions(t *testing.T) {
	libc, err := sys.OpenFile("libc.so.6")
	require.NoError(t, err)
	post, err := libc("sem_post")
	require.NoError(t, err)
	nothing, err := libc("getpid")
	require.NoError(t, err)
	c := inContext(t)
	s := stream(t, c)
	count := posted[:]
	clear(count)
	for range 3 {
		check(t, "launch a function", success, c.CuLaunchHostFunc(s, sys.CUhostFn(post), addressOf(at(count))))
	}
	check(t, "add a callback", success, c.CuStreamAddCallback(s, sys.CUstreamCallback(nothing), 0, 0))
	ok(t, c.CuStreamSynchronize(s))
	check(t, "it was called", 3, count[0])
	check(t, "a callback with flags", invalid, c.CuStreamAddCallback(s, sys.CUstreamCallback(nothing), 0, 1))
	check(t, "no function", invalid, c.CuLaunchHostFunc(s, 0, 0))
	check(t, "no callback", invalid, c.CuStreamAddCallback(s, 0, 0, 0))
	ok(t, c.CuStreamSynchronize(s))
}
