package share

import (
	"bytes"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
)

// looks reports whether a connection of this process looks for a record.
func looks() bool {
	stacks := make([]byte, 1<<20)
	return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("(*Conn).look("))
}

// WithSpin changes how both sides wait, not what they get: a consumer that waits for a
// prepared offer gets its data, ends with its time, and is quiet once it has attached.
func TestSpin(t *testing.T) {
	dev, ctx := leavesNothing(t)
	srv := listen(t, WithSpin(time.Hour))
	buf := newBuffer(t, ctx, 1)
	srv.Expect("data")
	attached := make(chan *Attachment)
	go func() {
		att, err := Attach(soon(t), srv.Path(), "data", dev, WithSpin(time.Hour))
		require.NoError(t, err)
		attached <- att
	}()
	prepared, err := srv.Prepare("data", buf, ReadOnly, WithLeases(1))
	require.NoError(t, err)
	want := noise(buf.Size(), 7)
	require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr(), want))
	offered := make(chan error)
	go func() { offered <- prepared.Offer(soon(t)) }()
	att := <-attached
	require.Eventually(t, func() bool { return !looks() }, 10*time.Second, time.Millisecond)
	got := make([]byte, len(want))
	require.NoError(t, cu.CopyToHost(ctx, got, att.Ptr()))
	require.Equal(t, want, got)
	require.NoError(t, att.Close())
	require.NoError(t, <-offered)

	srv.Expect("x")
	err = attachError(srv.Path(), dev, WithSpin(time.Hour), WithTimeout(20*time.Millisecond))
	require.ErrorIs(t, err, ErrTimeout)
	require.NoError(t, srv.Close())
}
