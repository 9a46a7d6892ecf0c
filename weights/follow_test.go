package weights

import (
	"bufio"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/sockets"
	"github.com/gpufd/gpufd/share"
)

// Every byte of whole updates comes, in pieces, and the publisher learns what was loaded. More updates than slots: they go back.
func TestUpdatesAreWhole(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	gone := make(chan channel.Gone, 1)
	p := publish(t, c, path, 2, channel.OnGone(func(g channel.Gone) { gone <- g }))
	const updates = 5
	inBackground(t, func() error {
		ctx := soon(t)
		err := p.w.AwaitReaders(ctx, 1)
		for n := uint64(1); n <= updates; n++ {
			err = errors.Join(err, p.update(ctx, n))
		}
		return err
	})
	var n uint64
	follow(t, c, path, func(u *Update) bool {
		if n > 0 {
			require.Equal(t, []uint64{n}, p.w.Noted())
		}
		n++
		require.Equal(t, n, u.Number)
		require.Equal(t, int64(n)*10, u.Step)
		require.Equal(t, ofUpdate, ok(names(t, c, u))(t))
		return n < updates
	})
	require.EqualValues(t, updates, (<-gone).Noted, "also of a body that leaves the loop")
}

// A body that leaves the loop within an update notes nothing of it, and gives back the frame that tore it, too.
func TestLeftWithinAnUpdate(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	gone := make(chan channel.Gone, 1)
	p := publish(t, c, path, 3, channel.OnGone(func(g channel.Gone) { gone <- g }))
	require.NoError(t, p.send(soon(t), first|last, 1, 0, scale))
	follow(t, c, path, func(u *Update) bool {
		if u.Number == 1 {
			require.Equal(t, []string{"scale+0"}, ok(names(t, c, u))(t))
			require.NoError(t, p.send(soon(t), first, 2, 0, aWeight))
			require.NoError(t, p.send(soon(t), first, 3, 0, aWeight))
			return true
		}
		require.ErrorIs(t, errOf(names(t, c, u)), ErrTorn)
		return false
	})
	left := <-gone
	require.EqualValues(t, 1, left.Noted)
	require.EqualValues(t, 3, left.Released)
}

// A worker finds the publisher of its own device without a path.
func TestFollowFindsItsPublisher(t *testing.T) {
	c := cutest.Context(t, cutest.Device(t))
	dir, err := os.MkdirTemp("/tmp", "gpufd-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	t.Setenv("NVIDIA_DRA_LOCAL_IPC_DIR", dir)
	require.NoError(t, os.MkdirAll(dir+"/gpufd/offers", 0o700))
	path := ok(sockets.Offer(OfferName("policy", c.Device().UUID())))(t)
	p := publish(t, c, path, 3)
	require.NoError(t, p.update(soon(t), 1))
	require.NoError(t, p.send(soon(t), first|last, 2, 0, scale)) // the newest frame, and a whole update
	listed := func() share.Listing {
		found := ok(sockets.Offers())(t)[OfferName("policy", c.Device().UUID())]
		require.Equal(t, path, found)
		return ok(share.List(soon(t), found, nil))(t)[0]
	}
	require.Equal(t, 3, listed().Slots)
	require.Zero(t, listed().Leases)
	follow(t, c, "", func(u *Update) bool {
		require.Equal(t, []string{"scale+0"}, ok(names(t, c, u))(t))
		require.Equal(t, 1, listed().Leases)
		return false
	})
}

// A worker on another GPU names the publisher's, and reads by peer access; without a name it waits for one of its own GPU.
func TestPublisherOfAnotherDevice(t *testing.T) {
	a, b := cutest.TwoDevices(t, cutest.Driver(t))
	path, c := socket(t), cutest.Context(t, b)
	p := publish(t, cutest.Context(t, a), path, 1)
	require.NoError(t, p.send(soon(t), first|last, 1, 0, aWeight, aBias))
	n := 0
	for u, err := range Follow(soon(t), "policy", c, &Options{Socket: path, Publisher: a.UUID()}) {
		require.NoError(t, err)
		require.Equal(t, []string{"a.weight+0", "a.bias+0"}, ok(names(t, c, u))(t))
		n++
		break
	}
	require.Equal(t, 1, n)
	ctx, cancel := context.WithCancel(context.Background())
	var why error
	waits := func(err error) { why = err; cancel() }
	for _, err := range Follow(ctx, "policy", c, &Options{Socket: path, Attach: share.AttachOptions{OnWait: waits}}) {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.ErrorIs(t, why, share.ErrNotFound)
}

// The metadata of the offer comes with each update; such that breaks the format ends the loop.
func TestMetadataOfTheOffer(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	offering := func(data string) channel.WriterOption {
		return channel.WithOffer(share.OfferOptions{Data: []byte(data)})
	}
	p := publish(t, c, path, 1, offering(`{"tensors":[{"name":"a.weight","dtype":"BF16","shape":[4,8]}],"in_place":true}`))
	require.NoError(t, p.send(soon(t), first|last, 1, 0, aWeight))
	follow(t, c, path, func(u *Update) bool {
		require.Equal(t, Metadata{[]Meta{{Name: "a.weight", DType: "BF16", Shape: []uint64{4, 8}}}, true}, *u.Metadata)
		return false
	})
	bad := socket(t)
	publish(t, c, bad, 1, offering(`{"tensors":1}`))
	requireEnd(t, c, bad, ErrFormat)
	slots := socket(t)
	publish(t, c, slots, 2, offering(`{"in_place":true}`))
	requireEnd(t, c, slots, ErrFormat)
}

// A channel whose slots come back in their order is none of weights.
func TestOrderedChannelIsRefused(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	srv := ok(share.Listen(path, nil))(t)
	w := ok(channel.NewWriter(soon(t), c, srv, OfferName("policy", c.Device().UUID()), 3, 8192))(t)
	t.Cleanup(func() { require.NoError(t, errors.Join(w.Close(), srv.Close())) })
	requireEnd(t, c, path, ErrFormat)
}

// Err says what became of an update: nothing is whole before its end.
func TestErrOfAnUpdate(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	p := publish(t, c, path, 3)
	inBackground(t, func() error {
		ctx := soon(t)
		return errors.Join(p.w.AwaitReaders(ctx, 1), p.update(ctx, 1), p.send(ctx, first|givenUp, 2, 0))
	})
	var none *Update
	require.ErrorIs(t, none.Err(), channel.ErrClosed)
	follow(t, c, path, func(u *Update) bool {
		if u.Number == 1 {
			require.ErrorIs(t, u.Err(), errLeft)
		}
		_, err := names(t, c, u)
		require.Equal(t, err, u.Err())
		return u.Number == 1
	})
}

// A frame that is refused goes back at once, and so does one that a gap leaves.
func TestRefusedFramesGoBack(t *testing.T) {
	for name, flags := range map[string]uint32{"refused": 8, "a gap": last} {
		t.Run(name, func(t *testing.T) {
			c, path := cutest.Context(t, cutest.Device(t)), socket(t)
			p := publish(t, c, path, 1)
			free := make(chan error, 1)
			go func() {
				ctx := soon(t)
				err := errors.Join(p.w.AwaitReaders(ctx, 1), p.send(ctx, first, 1, 0, aWeight), p.send(ctx, flags, 1, 2))
				_, there := p.w.Acquire(ctx)
				free <- errors.Join(err, there)
			}()
			for u, err := range Follow(soon(t), "policy", c, &Options{Socket: path}) {
				require.NoError(t, err)
				requireTorn(t, errOf(names(t, c, u)), 10)
				require.NoError(t, <-free)
				break
			}
		})
	}
}

// requireEnd checks that Follow yields that error alone.
func requireEnd(t *testing.T, c *cu.Context, path string, want error) {
	t.Helper()
	var got []error
	for _, err := range Follow(soon(t), "policy", c, &Options{Socket: path}) {
		got = append(got, err)
	}
	require.Len(t, got, 1)
	require.ErrorIs(t, got[0], want)
}

// An update that does not end whole says so, with its step, whatever tears it; the next one is good.
func TestTornUpdates(t *testing.T) {
	for name, tear := range map[string]func(ctx context.Context, p *publisher) error{
		"given up":       func(ctx context.Context, p *publisher) error { return p.send(ctx, givenUp, 1, 1) },
		"another begins": func(context.Context, *publisher) error { return nil },
		"a gap":          func(ctx context.Context, p *publisher) error { return p.send(ctx, last, 1, 2, scale) },
	} {
		t.Run(name, func(t *testing.T) {
			c, path := cutest.Context(t, cutest.Device(t)), socket(t)
			p := publish(t, c, path, 1)
			inBackground(t, func() error {
				ctx := soon(t)
				return errors.Join(p.w.AwaitReaders(ctx, 1), p.send(ctx, first, 1, 0, aWeight), tear(ctx, p), p.update(ctx, 2))
			})
			var n uint64
			follow(t, c, path, func(u *Update) bool {
				n++
				all, err := names(t, c, u)
				if n == 1 {
					requireTorn(t, err, 10)
					require.Equal(t, []string{"a.weight+0"}, all)
					require.Equal(t, err, errOf(names(t, c, u)), "it stays torn")
					return true
				}
				require.NoError(t, err)
				require.Equal(t, ofUpdate, all)
				require.Equal(t, []uint64{1 | failedBit}, p.w.Noted(), "it was not loaded whole")
				return false
			})
		})
	}
}

func requireTorn(t *testing.T, err error, step int64) {
	t.Helper()
	require.ErrorIs(t, err, ErrTorn)
	var torn *TornError
	require.ErrorAs(t, err, &torn)
	require.Equal(t, step, torn.Step)
	require.Equal(t, uint64(step/10), torn.Number)
	require.ErrorContains(t, err, "load a whole update")
}

// errOf returns the error of a call with two results.
func errOf[T any](_ T, err error) error { return err }

// An update that is given up at once is yielded, too.
func TestGivenUpAtOnce(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	p := publish(t, c, path, 2)
	require.NoError(t, p.send(soon(t), first|givenUp, 7, 0))
	follow(t, c, path, func(u *Update) bool {
		requireTorn(t, errOf(names(t, c, u)), 70)
		return false
	})
}

// Behind the end of a publisher Follow goes on with the next one, which counts its updates anew. The reader joins it within an
// update, which it skips.
func TestNextPublisher(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	srv := ok(share.Listen(path, nil))(t)
	p := ok(newPublisher(c, srv, 2))(t)
	inBackground(t, func() error {
		ctx := soon(t)
		return errors.Join(p.w.AwaitReaders(ctx, 1), p.send(ctx, first, 5, 0, aWeight), p.w.Close())
	})
	n := 0
	follow(t, c, path, func(u *Update) bool {
		if n++; n > 1 {
			require.Equal(t, uint64(2), u.Number)
			require.Equal(t, ofUpdate, ok(names(t, c, u))(t))
			return false
		}
		all, err := names(t, c, u)
		requireTorn(t, err, 50)
		require.ErrorIs(t, err, channel.ErrEnded)
		require.Equal(t, []string{"a.weight+0"}, all)
		require.NoError(t, srv.Close())
		next := publish(t, c, path, 4)
		require.NoError(t, next.send(soon(t), first, 1, 0, aWeight))
		require.NoError(t, next.send(soon(t), 0, 1, 1, scale))
		inBackground(t, func() error {
			ctx := soon(t)
			return errors.Join(next.w.AwaitReaders(ctx, 1), next.send(ctx, last, 1, 2), next.update(ctx, 2))
		})
		return true
	})
}

// A publisher that is killed within an update tears it; what came before is whole.
func TestPublisherKilled(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	child := cutest.Child(context.Background(), "publisher", pathEnv+"="+path)
	child.Stderr = os.Stderr
	_ = ok(child.StdinPipe())(t)
	out := bufio.NewScanner(ok(child.StdoutPipe())(t))
	require.NoError(t, child.Start())
	t.Cleanup(func() { _ = child.Wait() })
	n := 0
	follow(t, c, path, func(u *Update) bool {
		n++
		if n == 1 {
			require.Equal(t, ofUpdate, ok(names(t, c, u))(t))
			return true
		}
		require.True(t, out.Scan())
		require.NoError(t, child.Process.Kill())
		all, err := names(t, c, u)
		requireTorn(t, err, 20)
		require.ErrorIs(t, err, channel.ErrLost)
		require.Equal(t, []string{"a.weight+0", "w+0"}, all)
		return false
	})
}

// A frame that breaks the format tears its update, and ends the loop.
func TestBadFrames(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	p := publish(t, c, path, 4)
	inBackground(t, func() error {
		ctx := soon(t)
		return errors.Join(p.w.AwaitReaders(ctx, 1), p.send(ctx, first, 1, 0, aWeight), p.send(ctx, 8, 1, 1))
	})
	var got []error
	for u, err := range Follow(soon(t), "policy", c, &Options{Socket: path}) {
		if err != nil {
			got = append(got, err)
			continue
		}
		_, err := names(t, c, u)
		requireTorn(t, err, 10)
		require.ErrorIs(t, err, ErrFormat)
	}
	require.Len(t, got, 1)
	require.ErrorIs(t, got[0], ErrFormat)
}

// So does one that is the first to come: here with a flag that is not known, and with a table that is not what its digest says.
func TestBadFirstFrames(t *testing.T) {
	c := cutest.Context(t, cutest.Device(t))
	for name, d := range map[string]draft{"flag": {flags: first | 8, number: 1}, "digest": {flags: first | last, number: 1, digest: &[32]byte{1}}} {
		t.Run(name, func(t *testing.T) {
			path := socket(t)
			p := publish(t, c, path, 1)
			require.NoError(t, p.sendDraft(soon(t), d, aWeight))
			requireEnd(t, c, path, ErrFormat)
		})
	}
}

// The loop ends with its context, and waits for a publisher until then.
func TestFollowEnds(t *testing.T) {
	c, path := cutest.Context(t, cutest.Device(t)), socket(t)
	ctx, cancel := context.WithCancel(context.Background())
	waits := func(error) { cancel() }
	var got []error
	for _, err := range Follow(ctx, "policy", c, &Options{Socket: path, Attach: share.AttachOptions{OnWait: waits}}) {
		got = append(got, err)
	}
	require.Len(t, got, 1)
	require.ErrorIs(t, got[0], context.Canceled)
	for _, err := range Follow(soon(t), "policy", nil, nil) {
		require.ErrorContains(t, err, "no context")
	}
	for _, err := range Follow(soon(t), strings.Repeat("n", 100), c, nil) {
		require.ErrorContains(t, err, "name a socket")
	}
}
