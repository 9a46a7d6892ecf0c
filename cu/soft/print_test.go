package soft

import (
	"os"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/stretchr/testify/require"
)

const printing = `.version 7.4
.target sm_75
.address_size 64
.extern .func (.param .b32 result) vprintf (.param .b64 a, .param .b64 b);
.global .align 1 .b8 line[7] = {104, 101, 108, 108, 111, 10, 0};
.visible .entry say() {
	.reg .b64 %rd<2>; .reg .b32 %r<2>;
	mov.u64 %rd1, line;
	cvta.global.u64 %rd1, %rd1;
	.param .b64 format; .param .b64 values; .param .b32 count;
	st.param.b64 [format], %rd1;
	st.param.b64 [values], 0;
	call (count), vprintf, (format, values);
	ret;
}
`

// A kernel's prints appear when the host waits for it, in whatever way.
func TestKernelPrintsAreSeenByThoseWhoWait(t *testing.T) {
	out, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	was := os.Stdout
	os.Stdout = out
	t.Cleanup(func() { os.Stdout = was; require.NoError(t, out.Close()) })
	seen := func() int {
		text, err := os.ReadFile(out.Name())
		require.NoError(t, err)
		return strings.Count(string(text), "hello\n")
	}
	c := inContext(t, 0)
	mod := new(sys.CUmodule)
	ok(t, c.CuModuleLoadData(mod, text2c(printing)))
	s, e, p, word := newStream(t, c, nonBlocking), newEvent(t, c, 0), linear(t, c, 4096), make([]byte, 4)
	for n, wait := range []func(){
		func() { ok(t, c.CuStreamSynchronize(s)) },
		func() { ok(t, c.CuCtxSynchronize()) },
		func() { ok(t, c.CuEventRecord(e, s)); ok(t, c.CuEventSynchronize(e)) },
		func() { ok(t, c.CuMemcpyDtoH_v2(at(word), p, 4)) },
		func() { ok(t, c.CuModuleUnload(*mod)) },
	} {
		ok(t, c.CuLaunchKernel(functionOf(t, c, *mod, "say"), 1, 1, 1, 1, 1, 1, 0, s, nil, nil))
		for c.CuStreamQuery(s) == sys.CUDA_ERROR_NOT_READY {
		}
		require.Equal(t, n, seen())
		wait()
		require.Equal(t, n+1, seen())
	}
}

// If a kernel prints too much, the newest is kept.
func TestPrintedIsBounded(t *testing.T) {
	var p printed
	p.limit(2*leastPrinted + 1)
	for _, text := range []string{"oldest", "older", "young"} {
		n, err := p.Write([]byte(text))
		require.NoError(t, err)
		require.Equal(t, len(text), n)
	}
	var all strings.Builder
	p.flushTo(&all)
	p.flushTo(&all)
	require.Equal(t, "olderyoung", all.String())
	_, err := p.Write([]byte(strings.Repeat("too long ", 10)))
	require.NoError(t, err)
	for range 100 {
		_, err := p.Write(nil)
		require.NoError(t, err)
	}
	require.Empty(t, p.texts)
	p.flushTo(&all)
	require.Equal(t, "olderyoung", all.String())
}
