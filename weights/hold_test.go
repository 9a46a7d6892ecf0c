package weights

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu/cutest"
)

// Tensors that are kept stay as they are, while the publisher goes on in the other slots; they may go back in any order and from any goroutine.
func TestHeldTensorsStay(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	p := publish(t, c, path, 3)
	const buckets = 12
	inBackground(t, func() error {
		ctx := soon(t)
		err := p.w.AwaitReaders(ctx, 1)
		for i := range uint32(buckets) {
			x, y := aWeight, aBias
			x.Name, y.Name = string('a'+rune(i)), string('A'+rune(i))
			var flags uint32
			if i == 0 {
				flags = first
			} else if i == buckets-1 {
				flags = last
			}
			err = errors.Join(err, p.send(ctx, flags, 1, i, x, y))
		}
		return err
	})
	follow(t, c, path, func(u *Update) bool {
		var held []Tensor
		n := 0
		for x, err := range u.Tensors(soon(t)) {
			require.NoError(t, err)
			n++
			require.NoError(t, x.Hold())
			require.NoError(t, x.Hold(), "a second time")
			for _, h := range held {
				requireBytes(t, c, u.Step, h)
			}
			if held = append(held, x); len(held) == 5 { // the first bucket, a whole one, and one of which more is to come
				done := make(chan error)
				go func() { done <- errors.Join(held[2].Release(), held[2].Release(), held[3].Hold(), held[3].Release()) }()
				require.NoError(t, <-done)
				require.ErrorIs(t, held[3].Hold(), channel.ErrClosed)
				held = slices.Delete(held, 2, 4)
			}
		}
		require.Equal(t, 2*buckets, n)
		return false
	})
}

// A body that keeps all slots is told so, and can go on.
func TestAllSlotsHeld(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	p := publish(t, c, path, 2)
	inBackground(t, func() error { return errors.Join(p.w.AwaitReaders(soon(t), 1), p.update(soon(t), 1)) })
	follow(t, c, path, func(u *Update) bool {
		var held []Tensor
		var all []string
		var last error
		for x, err := range u.Tensors(soon(t)) {
			if last = err; err != nil {
				break
			}
			require.NoError(t, x.Hold())
			held, all = append(held, x), append(all, x.Name)
		}
		require.ErrorIs(t, last, channel.ErrOrder)
		require.ErrorIs(t, errOf(names(t, c, u)), channel.ErrOrder, "it stays so")
		require.NoError(t, held[2].Hold(), "and is there")
		require.Equal(t, []string{"a.weight", "w", "w"}, all)
		require.NoError(t, held[2].Release())
		require.ErrorIs(t, held[2].Hold(), channel.ErrClosed, "its bucket has gone back")
		rest, err := names(t, c, u)
		require.NoError(t, err)
		require.Equal(t, ofUpdate[3:], rest)
		requireBytes(t, c, u.Step, held[0])
		return false
	})
}

// A body that leaves an update to itself gets the next one whole, and has loaded nothing.
func TestLeftUpdates(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	p := publish(t, c, path, 2)
	inBackground(t, func() error {
		ctx := soon(t)
		return errors.Join(p.w.AwaitReaders(ctx, 1), p.update(ctx, 1), p.update(ctx, 2), p.update(ctx, 3))
	})
	var before *Update
	var kept Tensor
	var n uint64
	follow(t, c, path, func(u *Update) bool {
		n++
		require.Equal(t, n, u.Number)
		switch u.Number {
		case 1:
			before = u
			for x, err := range u.Tensors(soon(t)) {
				require.NoError(t, err)
				require.NoError(t, x.Hold())
				kept = x
				break
			}
		case 2:
			require.ErrorIs(t, errOf(names(t, c, before)), channel.ErrClosed)
			require.ErrorIs(t, before.AwaitWanted(soon(t)), channel.ErrClosed)
			require.ErrorIs(t, kept.Hold(), channel.ErrClosed)
			require.NoError(t, kept.Release())
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			for _, err := range u.Tensors(ended) {
				require.ErrorIs(t, err, context.Canceled)
			}
		default:
			require.Equal(t, []uint64{2 | failedBit}, p.w.Noted())
			require.Equal(t, ofUpdate, ok(names(t, c, u))(t))
			return false
		}
		return true
	})
}

// In place a worker uses the slot until the publisher wants it, and gets the newest weights when it joins.
func TestInPlace(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	p := publish(t, c, path, 1)
	require.NoError(t, p.send(soon(t), first|last, 1, 0, aWeight, aBias)) // before anybody has joined
	taken := make(chan struct{})
	const updates = 20
	inBackground(t, func() error {
		ctx := soon(t)
		for n := uint64(2); n <= updates; n++ {
			select {
			case <-taken:
			case <-ctx.Done():
				return ctx.Err()
			}
			if err := p.send(ctx, first|last, n, 0, aWeight, aBias); err != nil {
				return err
			}
		}
		return nil
	})
	var n uint64
	follow(t, c, path, func(u *Update) bool {
		n++
		require.Equal(t, n, u.Number)
		var held []Tensor
		for x, err := range u.Tensors(soon(t)) {
			require.NoError(t, err)
			require.NoError(t, x.Hold())
			held = append(held, x)
		}
		if n == updates {
			return false
		}
		for i := range 3 {
			for _, x := range held {
				requireBytes(t, c, u.Step, x)
			}
			if i == 1 {
				taken <- struct{}{}
				require.NoError(t, u.AwaitWanted(soon(t)))
			}
		}
		return true
	})
}

// A reader that was dropped for being slow is told so, also where it keeps the bucket: the publisher may have written there. It comes
// back, and gets the newest weights.
func TestDropped(t *testing.T) {
	for _, holds := range []bool{false, true} {
		t.Run(fmt.Sprint("holds ", holds), func(t *testing.T) {
			c, path := cutest.Context(t, cutest.Device(t)), socket(t)
			gone := make(chan channel.Gone, 2)
			p := publish(t, c, path, 1, channel.WithDropAfter(time.Millisecond), channel.OnGone(func(g channel.Gone) { gone <- g }))
			inBackground(t, func() error {
				ctx := soon(t)
				return errors.Join(p.w.AwaitReaders(ctx, 1), p.send(ctx, first|last, 1, 0, aWeight), p.send(ctx, first|last, 2, 0, aWeight))
			})
			follow(t, c, path, func(u *Update) bool {
				if u.Number == 2 {
					require.Equal(t, []string{"a.weight+0"}, ok(names(t, c, u))(t))
					return false
				}
				var last error
				for x, err := range u.Tensors(soon(t)) {
					if last = err; err != nil {
						break
					}
					if holds {
						require.NoError(t, x.Hold())
					}
					require.ErrorIs(t, (<-gone).Err, channel.ErrStalled)
				}
				requireTorn(t, last, 10)
				require.ErrorIs(t, last, channel.ErrDropped)
				return true
			})
		})
	}
}

// Two workers keep a bucket each, and give it back from another goroutine while they wait for the next one: neither keeps the other
// waiting.
func TestReleaseWhileTensorsWaits(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	p := publish(t, c, path, 2)
	errs := make(chan error, 5)
	both := make(chan struct{}) // each keeps one
	var keep sync.WaitGroup
	keep.Add(2)
	go func() { keep.Wait(); close(both) }()
	for kept := range 2 {
		go func() {
			for u, err := range Follow(soon(t), "policy", c, &Options{Socket: path}) {
				if err != nil {
					errs <- err
					return
				}
				n := 0
				for x := range u.Tensors(soon(t)) {
					if n == kept {
						err = x.Hold()
						keep.Done()
						go func() { <-both; errs <- x.Release() }()
					}
					n++
				}
				errs <- errors.Join(err, u.Err())
				return
			}
		}()
	}
	go func() {
		ctx := soon(t)
		errs <- errors.Join(p.w.AwaitReaders(ctx, 2), p.send(ctx, first, 1, 0, aWeight), p.send(ctx, 0, 1, 1, aBias), p.send(ctx, last, 1, 2, scale))
	}()
	for range 5 {
		require.NoError(t, <-errs)
	}
}

// A reader that was dropped while it kept tensors of a whole update learns it behind the turn: the publisher may have written there.
func TestDroppedBehindTheEnd(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	gone := make(chan channel.Gone, 2)
	p := publish(t, c, path, 1, channel.WithDropAfter(time.Millisecond), channel.OnGone(func(g channel.Gone) { gone <- g }))
	whole := make(chan struct{})
	inBackground(t, func() error {
		ctx := soon(t)
		err := errors.Join(p.w.AwaitReaders(ctx, 1), p.send(ctx, first|last, 1, 0, aWeight))
		<-whole
		return errors.Join(err, p.send(ctx, first|last, 2, 0, aWeight))
	})
	var before *Update
	follow(t, c, path, func(u *Update) bool {
		if u.Number == 2 {
			requireTorn(t, before.Err(), 10)
			require.ErrorIs(t, before.Err(), channel.ErrDropped)
			return false
		}
		before = u
		for x, err := range u.Tensors(soon(t)) {
			require.NoError(t, err)
			require.NoError(t, x.Hold())
		}
		require.NoError(t, u.Err())
		close(whole)
		require.ErrorIs(t, (<-gone).Err, channel.ErrStalled)
		return true
	})
}
