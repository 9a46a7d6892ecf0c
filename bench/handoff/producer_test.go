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
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/soft"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// A salt that is not there, at either end, is a failure of the handoff.
func TestWrongSaltIsFound(t *testing.T) {
	dev, ctx, err := program.Device("soft", 0)
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
	require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr().Add(last), []uint64{0}))
	require.ErrorContains(t, c.check(buf, 7), "at offset 2097144")
}

func TestWithoutADriver(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "-1") // where there is one
	var stdout, stderr strings.Builder
	require.Equal(t, cli.ExitMachine, run([]string{"-as", "consumer", "-socket", "nowhere"}, nil, &stdout, &stderr))
	require.Empty(t, stderr.String())
	require.True(t, strings.HasPrefix(stdout.String(), `{"error":"`), stdout.String())
	require.Equal(t, 1, strings.Count(stdout.String(), "\n"))
}

// spied is a producer on the software driver, and the symbols that it calls.
func spied(t *testing.T) (*producer, func() []string) {
	var mu sync.Mutex
	var called []string
	p, err := newProducer("soft")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.close()) })
	require.NoError(t, p.ctx.Close())
	drv, err := cu.Open(cu.WithResolver(soft.Resolver), cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
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

// The offer is prepared before the data is written, and nothing waits for the device but that.
func TestHandoff(t *testing.T) {
	p, called := spied(t)
	a, err := p.handoff([]uint64{6 << 20})
	require.NoError(t, err)
	require.Positive(t, a.NS)
	calls := called()
	written, exported := slices.Index(calls, "cuMemcpyHtoDAsync_v2"), slices.Index(calls, "cuMemExportToShareableHandle")
	require.NotEqual(t, -1, exported)
	require.Less(t, exported, written)
	require.NotContains(t, calls, "cuCtxSynchronize")
}

// A handoff that fails does so at once, not when its time is up, and the next one
// can be tried.
func TestHandoffsThatFail(t *testing.T) {
	p, _ := spied(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience/2)
	defer cancel()
	begin := func() (*handover, *share.Offer) {
		p.offers++
		h := newHandover(offerName(p.offers))
		offer, err := p.expect(h)
		require.NoError(t, err)
		return h, offer
	}
	h, offer := begin()
	gone := make(chan struct{})
	go func() { // this consumer is refused
		defer close(gone)
		_, err := share.Attach(ctx, p.srv.Path(), h.name, p.dev, &share.AttachOptions{Access: cu.ReadWrite})
		assert.Error(t, err)
	}()
	require.ErrorContains(t, p.make(ctx, h, offer, 2<<20), "was asked for")
	<-gone
	h, offer = begin()
	_, err := p.consumer.Ask(ctx, "connect %d", p.offers)
	require.NoError(t, err)
	p.offers++ // so that another salt is written
	require.ErrorContains(t, p.make(ctx, h, offer, 2<<20), "at offset 0")
	_, err = p.consumer.Ask(ctx, "cancel")
	require.NoError(t, err, "it has finished")
	_, err = p.consumer.Ask(ctx, "finish")
	require.ErrorContains(t, err, "there was no connect")
	_, err = p.handoff([]uint64{2 << 20})
	require.NoError(t, err)
	require.NoError(t, ctx.Err())
}

func TestConsumerIsReady(t *testing.T) {
	var stdout, stderr strings.Builder
	require.Equal(t, cli.ExitOK, run([]string{"-as", "consumer", "-driver", "soft", "-socket", "nowhere"}, strings.NewReader(""), &stdout, &stderr))
	require.Contains(t, stdout.String(), `"ready":true`, stderr.String())
}
