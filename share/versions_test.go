package share

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// A stopped process that has a lease keeps nobody from the name, and a grace period gives
// the memory back.
func TestFault80_StoppedConsumerOfWhatIsReplaced(t *testing.T) {
	dev, ctx, srv := listening(t)
	old := put(t, srv, newBuffer(t, ctx, 1), WithGrace(brief), goodbyeIn(1, brief))
	c := start(t, "consumer", srv.Path(), "stop when mapped")
	c.says(t, "mapped")
	c.stop(t)
	next := newBuffer(t, ctx, 2)
	fresh := replace(t, srv, next)
	n := 0
	for ; len(old.result) == 0; n++ { // until it returns, and not once without the name
		att := ok(Attach(soon(t), srv.Path(), "data", dev))(t)
		require.EqualValues(t, 2, att.Size())
		require.NoError(t, att.Close())
	}
	require.Positive(t, n)
	require.NoError(t, old.end(t))
	require.ErrorIs(t, old.await(t, Ended, 1).Err, ErrRevoked)
	c.kill()
	require.NoError(t, fresh.await(t, Ended, n).Err)
}

// A thousand versions, of which some consumers always want the latest: half of them attach
// again and again, and half range over Follow. None is refused, and each sees one version
// while it is attached: the memory is written again when the last has left, and not before.
// The versions of a consumer go up.
//
//fault:rows 80
func TestThousandReplacements(t *testing.T) {
	versions, size := 1000, uint64(64<<10)
	if cutest.Kind() == cu.CUDA && !cutest.All() {
		versions = 100
	}
	dev, ctx, srv := listening(t)
	srv.Expect("data")
	over, stop := context.WithCancel(context.Background()) // of the consumers
	serving, end := context.WithCancel(context.Background())
	var consumers, offers sync.WaitGroup
	defer func() {
		stop()
		consumers.Wait()
		end()
		offers.Wait()
	}()
	for i := range 8 {
		consumers.Go(func() {
			f := follower{path: srv.Path(), dev: dev, ctx: ctx}
			step := f.attachAll
			if i%2 == 0 {
				step = f.followAll
			}
			if err := step(over); err != nil || f.last == 0 {
				t.Error("consumer", i, "saw version", f.last, "last:", err)
			}
		})
	}
	free := make(chan *vmm.Buffer, 3)
	for range cap(free) {
		free <- newBuffer(t, ctx, size)
	}
	for v := range versions {
		var buf *vmm.Buffer
		select {
		case buf = <-free:
		case <-soon(t).Done():
			require.FailNow(t, "no offer returns")
		}
		require.NoError(t, cu.Fill(ctx, buf.Ptr(), uint32(v+1), size/4))
		taken := make(chan struct{})
		offers.Go(func() {
			err := srv.Replace(serving, "data", buf, ReadOnly, OnLease(func(l *Lease) {
				if l.Number() == 1 {
					close(taken)
				}
			}))
			if err != nil {
				t.Error(err)
			}
			free <- buf
		})
		select {
		case <-taken: // by one consumer at least
		case <-soon(t).Done():
			require.FailNow(t, "nobody comes for the new version")
		}
	}
}

// A follower attaches, looks at the memory, waits for something newer, looks again, and
// lets go.
type follower struct {
	path string
	dev  *cu.Device
	ctx  *cu.Context
	last uint32 // version
}

func (f *follower) attachAll(over context.Context) error {
	for over.Err() == nil {
		att, err := Attach(context.Background(), f.path, "data", f.dev)
		if err != nil {
			return err
		}
		if err := errors.Join(f.watch(over, att), att.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) followAll(over context.Context) error {
	for att, err := range Follow(over, f.path, "data", f.dev) {
		if over.Err() != nil {
			return nil
		}
		if err == nil {
			err = f.watch(over, att)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// watch looks at the memory until there is something newer.
func (f *follower) watch(over context.Context, att *Attachment) error {
	first, err := f.version(att)
	if err != nil {
		return err
	}
	select {
	case <-att.Superseded():
	case <-att.Done():
	case <-over.Done():
	}
	again, err := f.version(att)
	switch {
	case err != nil:
		return err
	case again != first:
		return fmt.Errorf("version %d became %d", first, again)
	case first < f.last:
		return fmt.Errorf("version %d behind version %d", first, f.last)
	}
	f.last = first
	return nil
}

// version is that of every word of the memory.
func (f *follower) version(att *Attachment) (uint32, error) {
	got := make([]byte, att.Size())
	if err := cu.CopyToHost(f.ctx, got, att.Ptr()); err != nil {
		return 0, err
	}
	v := binary.NativeEndian.Uint32(got)
	for i := 0; i < len(got); i += 4 {
		if now := binary.NativeEndian.Uint32(got[i:]); now != v {
			return 0, fmt.Errorf("versions %d and %d at once", v, now)
		}
	}
	return v, nil
}
