package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/vmm"
)

// A salt that is not there, at either end, is a failure of the handoff.
func TestWrongSaltIsFound(t *testing.T) {
	dev, ctx, err := options{driver: "soft"}.device(true)
	require.NoError(t, err)
	defer ctx.Close()
	buf, err := vmm.New(dev, 2<<20)
	require.NoError(t, err)
	defer buf.Close()
	p, c := producer{dev: dev, ctx: ctx, offers: 7}, consumer{dev: dev, ctx: ctx}
	require.Error(t, c.check(buf, 7), "nothing is written yet")
	require.NoError(t, p.write(buf))
	require.NoError(t, c.check(buf, 7))
	require.ErrorContains(t, c.check(buf, 8), "at offset 0")
	last := buf.Size() - 8
	require.NoError(t, cu.CopyToDevice(ctx, nil, buf.Ptr().Add(last), []uint64{0}))
	require.ErrorContains(t, c.check(buf, 7), "at offset 2097144")
}

func TestWithoutADriver(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "-1") // where there is one
	var stdout, stderr strings.Builder
	require.Equal(t, cli.ExitMachine, run([]string{"-consumer", "nowhere"}, nil, &stdout, &stderr))
	require.Empty(t, stderr.String())
	require.True(t, strings.HasPrefix(stdout.String(), `{"error":"`), stdout.String())
	require.Equal(t, 1, strings.Count(stdout.String(), "\n"))
}

// The acknowledgement's way begins where the consumer sends it.
func TestReply(t *testing.T) {
	h := newHandover("offer", 1)
	h.start, h.each = 1000, []int64{500}
	h.add([]rival.Step{{Side: "consumer", Name: "import", At: 1100, NS: 50}, {Side: "consumer", Name: "access", At: 1300, NS: 20}})
	a := h.answer()
	require.EqualValues(t, 500, a.NS)
	require.Equal(t, rival.Step{Side: "producer", Name: "reply", At: 320, NS: 180}, a.Steps[len(a.Steps)-1])
}
