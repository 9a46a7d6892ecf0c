package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// A salt that is not there, at either end, is a failure of the handoff.
func TestWrongSaltIsFound(t *testing.T) {
	dev, ctx, err := options{driver: "soft"}.device()
	require.NoError(t, err)
	defer ctx.Close()
	buf, err := vmm.New(dev, 2<<20)
	require.NoError(t, err)
	defer buf.Close()
	p, c, h := producer{dev: dev, ctx: ctx, offers: 7}, consumer{dev: dev, ctx: ctx}, newHandover("offer")
	require.Error(t, c.check(buf, 7), "nothing is written yet")
	require.NoError(t, p.write(h, buf))
	require.NoError(t, c.check(buf, 7))
	require.ErrorContains(t, c.check(buf, 8), "at offset 0")
	last := buf.Size() - 8
	require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr().Add(last), []uint64{0}))
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
	h := newHandover("offer")
	h.start, h.took = 1000, 500
	h.add([]rival.Step{{Side: "consumer", Name: "import", At: 1100, NS: 50}, {Side: "consumer", Name: "access", At: 1300, NS: 20}})
	a := h.answer()
	require.EqualValues(t, 500, a.NS)
	require.Equal(t, rival.Step{Side: "producer", Name: "reply", At: 320, NS: 180}, a.Steps[len(a.Steps)-1])
}

// A consumer that had its descriptors before the buffer was ready attaches from
// then on, and its answer to the offer is not to be seen.
func TestStepsOfAConsumerThatIsAhead(t *testing.T) {
	h := newHandover("offer")
	h.start, h.took = 1000, 50
	h.add([]rival.Step{
		{Side: "consumer", Name: "import", At: 500, NS: 100}, {Side: "consumer", Name: "access", At: 600, NS: 300},
		{Side: "consumer", Name: "attach", At: 400, NS: 640}})
	require.Equal(t, []rival.Step{
		{Side: "consumer", Name: "import", At: -500, NS: 100}, {Side: "consumer", Name: "access", At: -400, NS: 300},
		{Side: "consumer", Name: "attach", At: 0, NS: 40},
	}, h.answer().Steps)
}

// spied is a producer on the software driver, and the symbols that it calls.
func spied(t *testing.T) (*producer, func() []string) {
	var mu sync.Mutex
	var called []string
	p, err := newProducer(options{driver: "soft", mode: ahead})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.close()) })
	require.NoError(t, p.ctx.Close())
	drv, err := cu.Open(cu.WithResolver(soft.Resolver), program.Steps(), cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		mu.Lock()
		called = append(called, call.Symbol())
		mu.Unlock()
		return next()
	}))
	require.NoError(t, err)
	p.dev, err = drv.Device(0)
	require.NoError(t, err)
	p.ctx, err = p.dev.PrimaryContext()
	require.NoError(t, err)
	return p, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(called)
	}
}

// at is when each of the steps began; they have happened once.
func at(t *testing.T, a rival.Answer) map[string]int64 {
	began := map[string]int64{}
	for _, s := range a.Steps {
		require.NotContains(t, began, s.Side+" "+s.Name)
		began[s.Side+" "+s.Name] = s.At
	}
	return began
}

// orderOf is where the first write and the first export are among calls.
func orderOf(calls []string) (written, exported int) {
	return slices.Index(calls, "cuMemcpyHtoDAsync_v2"), slices.Index(calls, "cuMemExportToShareableHandle")
}

// Each mode does beforehand what it is said to.
func TestModes(t *testing.T) {
	p, called := spied(t)
	for _, m := range []mode{ahead, before, plain} {
		p.opts.mode = m
		past := len(called())
		a, err := p.handoff([]uint64{6 << 20, 3})
		require.NoError(t, err, m)
		require.Positive(t, a.NS)
		calls, began := called()[past:], at(t, a)
		written, exported := orderOf(calls)
		require.NotEqual(t, -1, min(written, exported), m)
		require.Equal(t, m == ahead, exported < written, m)
		require.Equal(t, m == plain, slices.Contains(calls, "cuCtxSynchronize"), m)
		require.Negative(t, began["producer create"], m)
		require.Negative(t, began["producer export"], m)
		require.Negative(t, began["producer write"], m)
		require.Greater(t, began["producer release"], a.NS, m)
		for _, step := range []string{"import", "reserve", "map", "access"} {
			require.Contains(t, began, "consumer "+step, m)
			if m != ahead {
				require.Positive(t, began["consumer "+step], "%s %s", m, step)
			}
		}
		require.GreaterOrEqual(t, began["consumer attach"], int64(0), m)
		require.Greater(t, began["consumer close"], a.NS, m)
	}
}

// A handoff that fails does so at once, not when its time is up, and the next one
// can be tried.
func TestHandoffsThatFail(t *testing.T) {
	p, _ := spied(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	defer cancel()
	begin := func() *handover {
		p.offers++
		h := newHandover(offerName(p.offers))
		p.srv.Expect(h.name)
		return h
	}
	h, gone := begin(), make(chan struct{})
	go func() { // this consumer is refused
		defer close(gone)
		_, err := share.Attach(ctx, p.srv.Path(), h.name, p.dev, share.WithAccess(share.ReadWrite))
		assert.Error(t, err)
	}()
	require.ErrorContains(t, p.make(ctx, h, 2<<20, 1, before), "was asked for")
	<-gone
	h = begin()
	require.NoError(t, p.ask(ctx, h, "connect %d", p.offers))
	p.offers++ // so that another salt is written
	require.ErrorContains(t, p.make(ctx, h, 2<<20, 1, before), "at offset 0")
	require.NoError(t, p.ask(ctx, h, "cancel"), "it has finished")
	_, err := p.consumer.Ask(ctx, "finish")
	require.ErrorContains(t, err, "there was no connect")
	_, err = p.handoff([]uint64{2 << 20, 1})
	require.NoError(t, err)
	require.NoError(t, ctx.Err())
}

func TestWrongFlags(t *testing.T) {
	for _, args := range [][]string{{"-mode", ""}, {"-mode", "after"}, {"-room=false"}, {"-plain"}, {"more"}} {
		var stdout, stderr strings.Builder
		require.Equal(t, cli.ExitUsage, run(args, nil, &stdout, &stderr), args)
		require.Equal(t, 1, strings.Count(stderr.String(), "\n"), stderr.String())
	}
	for _, m := range []mode{ahead, before, plain} {
		var stdout, stderr strings.Builder
		require.Equal(t, cli.ExitOK, run([]string{"-driver", "soft", "-mode", m.String(), "-consumer", "nowhere"}, strings.NewReader(""), &stdout, &stderr))
		require.Contains(t, stdout.String(), `"ready":true`, stderr.String())
	}
}
