package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/testenv"
)

// states are those of a kernel.
var states = []string{"running", "queued"}

// bring gives s a kernel that uses m, and another before it if the kernel is to be queued.
func bring(state string, s *cu.Stream, k, before *holder, m cu.Pointer) error {
	if state == "running" {
		return k.run(s, m)
	}
	if err := before.run(s, before.memory); err != nil {
		return err
	}
	return k.queue(s, m)
}

// Close of memory waits for a kernel that uses it, or says that it is in use. The kernel finds its memory.
func TestFault97_CloseUnder(t *testing.T) {
	for name, make := range makers {
		for _, state := range states {
			t.Run(name+"/"+state+"/waits", func(t *testing.T) {
				u := newUse(t, 5*patience, make, state)
				waits(t, u.m.Close, u.release)
				u.requireDone(t)
			})
			t.Run(name+"/"+state+"/gives up", func(t *testing.T) {
				u := newUse(t, 20*time.Millisecond, make, state)
				p := u.m.Ptr()
				err := within(t, u.m.Close)
				require.ErrorIs(t, err, gpumem.ErrInUse)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, p, u.m.Ptr())
				u.release()
				u.requireDone(t)
				require.NoError(t, u.m.Close())
			})
		}
	}
}

// A use is memory and the kernel that uses it.
type use struct {
	ctx       *cu.Context
	s         *cu.Stream
	m         memory
	k, before *holder
}

func newUse(t *testing.T, limit time.Duration, make maker, state string) *use {
	t.Helper()
	_, ctx := device(t, limit)
	m := untilEnd(t, ok(make(ctx, t.TempDir(), func(c io.Closer) { untilEnd(t, c) }))(t))
	u := &use{ctx, newStream(t, ctx), m, held(t, ctx), held(t, ctx)}
	require.NoError(t, bring(state, u.s, u.k, u.before, m))
	return u
}

func (u *use) release() {
	u.before.release()
	u.k.release()
}

// requireDone checks that the kernel has found its memory, and ended well.
func (u *use) requireDone(t *testing.T) {
	t.Helper()
	require.NoError(t, u.s.Synchronize(soon(t)))
	require.EqualValues(t, filler, u.k.result())
	requireAlive(t, u.ctx)
}

const (
	makerEnv = testenv.Prefix + "MAKER"
	stateEnv = testenv.Prefix + "STATE"
	dirEnv   = testenv.Prefix + "DIR"
)

// CloseNow unmaps the memory under a kernel, which costs the process its contexts.
func TestFault97_UnmapUnder(t *testing.T) {
	for _, name := range []string{"Buffer", "View", "Mapping", "Attachment"} {
		for _, state := range states {
			t.Run(name+"/"+state, func(t *testing.T) {
				if name == "View" || name == "Mapping" {
					cutest.ProvenOnSoft(t)
				}
				child := cutest.Child(soon(t), "closes under a kernel", makerEnv+"="+name, stateEnv+"="+state, dirEnv+"="+t.TempDir())
				out, err := child.CombinedOutput()
				require.NoError(t, err, string(out))
			})
		}
	}
}

func childClosesNow() error {
	cutest.ExpectLeaks()
	dev := testenv.Got(testenv.Got(cutest.Open()).Device(0))
	ctx := testenv.Got(dev.PrimaryContext())
	m := testenv.Got(makers[os.Getenv(makerEnv)](ctx, os.Getenv(dirEnv), func(io.Closer) {}))
	k, before, s := testenv.Got(newHolder(ctx)), testenv.Got(newHolder(ctx)), testenv.Got(ctx.NewStream())
	testenv.Must(bring(os.Getenv(stateEnv), s, k, before, m))
	testenv.Must(m.(interface{ CloseNow() error }).CloseNow())
	before.release()
	if os.Getenv(stateEnv) == "queued" {
		k.release() // it faults also if it would read once
	}
	wait, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, err := range []error{s.Synchronize(wait), errOf(ctx.Alloc(4))} {
		if !errors.Is(err, cu.ErrIllegalAddress) || !errors.Is(err, cu.ErrContextLost) {
			return fmt.Errorf("want an illegal address, for which the context is lost; got %w", err)
		}
	}
	return nil
}
