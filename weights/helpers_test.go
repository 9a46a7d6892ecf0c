package weights

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
)

// soon is a deadline for what should happen at once.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// bytesOf is what a tensor of that name has at a step, from that byte on: each word is of that place alone.
func bytesOf(name string, step int64, from, n uint64) []byte {
	sum := sha256.Sum256([]byte(name))
	seed := binary.LittleEndian.Uint64(sum[:]) + uint64(step)*0x9e3779b97f4a7c15
	b := make([]byte, n)
	for i := range b {
		at := from + uint64(i)
		b[i] = byte((seed ^ at/8*0xbf58476d1ce4e5b9) >> (at % 8 * 8))
	}
	return b
}

// A publisher writes frames of weights as the test wants them.
type publisher struct {
	c *cu.Context
	w *channel.Writer
}

// socket is a path for a publisher of the test's own.
func socket(t testing.TB) string { return filepath.Join(t.TempDir(), "s") }

// publish is a publisher named policy at path, closed when t ends.
func publish(t testing.TB, c *cu.Context, path string, slots int, opts ...channel.WriterOption) *publisher {
	t.Helper()
	srv := ok(share.Listen(path, nil))(t)
	p := ok(newPublisher(c, srv, slots, opts...))(t)
	t.Cleanup(func() { require.NoError(t, errors.Join(p.w.Close(), srv.Close())) })
	return p
}

func newPublisher(c *cu.Context, srv *share.Server, slots int, opts ...channel.WriterOption) (*publisher, error) {
	w, err := channel.NewWriter(context.Background(), c, srv, OfferName("policy", c.Device().UUID()), slots, 8192, append(opts, channel.WithAnyOrder())...)
	return &publisher{c, w}, err
}

// send publishes a frame whose update has ten times its number as step.
func (p *publisher) send(ctx context.Context, flags uint32, number uint64, index uint32, tensors ...tensorVector) error {
	return p.sendDraft(ctx, draft{flags: flags, number: number, step: int64(number) * 10, bucket: index}, tensors...)
}

func (p *publisher) sendDraft(ctx context.Context, d draft, tensors ...tensorVector) error {
	s, err := p.w.Acquire(ctx)
	if err != nil {
		return err
	}
	b := make([]byte, s.Size())
	for _, x := range tensors {
		copy(b[x.At:], bytesOf(x.Name, d.step, x.From, x.Bytes))
		d.at = max(d.at, (x.At+x.Bytes+7)&^7)
	}
	if tensors != nil {
		d.table = tableOf(tensors...)
		copy(b[d.at:], d.table)
	}
	if err := cu.CopyToDevice(p.c, s.Ptr(), b); err != nil {
		return err
	}
	v := d.vector("", "")
	own, err := hex.DecodeString(v.User)
	if err != nil {
		return err
	}
	return p.w.Publish(s, channel.Meta{Size: max(v.Size, 1), User: own})
}

// update publishes an update of three buckets: a tensor in pieces, and two small ones.
func (p *publisher) update(ctx context.Context, number uint64) error {
	return errors.Join(
		p.send(ctx, first, number, 0, aWeight, piece(256, 0, 1024)),
		p.send(ctx, 0, number, 1, piece(0, 1024, 2048)),
		p.send(ctx, last, number, 2, piece(256, 3072, 1024), scaleAt(2048)))
}

func scaleAt(at uint64) tensorVector {
	x := scale
	x.At = at
	return x
}

// requireBytes checks those of a tensor.
func requireBytes(t testing.TB, c *cu.Context, step int64, x Tensor) {
	t.Helper()
	b := make([]byte, x.Size)
	if len(b) > 0 {
		require.NoError(t, cu.CopyToHost(c, b, x.Ptr))
	}
	require.Equal(t, bytesOf(x.Name, step, x.From, x.Size), b, "%s from %d on at step %d", x.Name, x.From, step)
}

// names are the pieces of an update, with their bytes checked, up to the error.
func names(t testing.TB, c *cu.Context, u *Update) (all []string, err error) {
	t.Helper()
	for x, err := range u.Tensors(soon(t)) {
		if err != nil {
			return all, err
		}
		requireBytes(t, c, u.Step, x)
		all = append(all, fmt.Sprintf("%s+%d", x.Name, x.From))
	}
	return all, nil
}

// ofUpdate are the names of what update publishes.
var ofUpdate = []string{"a.weight+0", "w+0", "w+1024", "w+3072", "scale+0"}

// follow follows the publisher at path until body says that it has enough.
func follow(t testing.TB, c *cu.Context, path string, body func(u *Update) (more bool)) {
	t.Helper()
	for u, err := range Follow(soon(t), "policy", c, &Options{Socket: path}) {
		require.NoError(t, err)
		if !body(u) {
			return
		}
	}
	t.Fatal("the loop has ended")
}

// inBackground runs f, whose error fails the test when it ends.
func inBackground(t testing.TB, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	t.Cleanup(func() { require.NoError(t, <-done) })
}

// pathEnv is the socket of a child.
const pathEnv = testenv.Prefix + "PATH"

// childPublisher publishes one update, and two buckets of the next.
func childPublisher() error {
	dev := testenv.Got(testenv.Got(cutest.Open()).Device(0))
	c := testenv.Got(dev.PrimaryContext())
	srv := testenv.Got(share.Listen(os.Getenv(pathEnv), nil))
	p := testenv.Got(newPublisher(c, srv, 4))
	ctx := context.Background()
	testenv.Must(p.w.AwaitReaders(ctx, 1))
	testenv.Must(p.update(ctx, 1))
	testenv.Must(p.send(ctx, first, 2, 0, aWeight, piece(256, 0, 1024)))
	fmt.Println("within")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return errors.New("nobody killed the publisher")
}
