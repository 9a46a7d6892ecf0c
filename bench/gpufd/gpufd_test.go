package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// A salt that is not there, at either end, is a failure of the handoff.
func TestWrongSaltIsFound(t *testing.T) {
	dev, err := options{driver: "soft"}.open()
	require.NoError(t, err)
	ctx, err := dev.PrimaryContext()
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
