package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/kernels/digest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// soon is a deadline for what should happen at once.
func soon(t testing.TB) context.Context {
	t.Helper()
	patience := 30 * time.Second
	if cutest.Emulated() {
		patience *= 4 // keepers start slowly there
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// newSocket returns a path in a directory that only this user may look into. An fd store
// that is there when the test ends is ended.
func newSocket(t testing.TB) string {
	t.Helper()
	dir := ok(os.MkdirTemp("/tmp", "keeper"))(t)
	socket := filepath.Join(dir, "socket")
	t.Cleanup(func() {
		if c, err := fdstore.Dial(soon(t), socket+storeSuffix); err == nil {
			exitStore(t, c)
		}
		require.NoError(t, os.RemoveAll(dir))
	})
	return socket
}

// exitStore ends the fd store of a keeper that has ended: one that lives would start another.
func exitStore(t testing.TB, c *fdstore.Client) {
	t.Helper()
	require.NoError(t, c.Exit(soon(t)))
	require.NoError(t, c.Close())
}

// storeCommand returns the command that runs the test binary as an fd store.
func storeCommand() []string { return []string{"/proc/self/exe", storeArgument} }

// A diary is what a keeper has logged.
type diary struct {
	mu    sync.Mutex
	lines []string
	more  chan struct{}
}

func newDiary() *diary { return &diary{more: make(chan struct{}, 1)} }

func (d *diary) log(line string) {
	d.mu.Lock()
	d.lines = append(d.lines, line)
	d.mu.Unlock()
	select {
	case d.more <- struct{}{}:
	default:
	}
}

func (d *diary) text() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return strings.Join(d.lines, "\n")
}

func (d *diary) clear() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = nil
}

// await waits for a line that holds words.
func (d *diary) await(t testing.TB, words string) {
	t.Helper()
	for ctx := soon(t); !strings.Contains(d.text(), words); {
		select {
		case <-ctx.Done():
			require.Contains(t, d.text(), words)
		case <-d.more:
		}
	}
}

// options are those of a keeper at socket.
func options(socket string) Options {
	return Options{Socket: socket, Store: storeCommand(), Mover: []string{"/proc/self/exe", moverArgument}, Timeout: 20 * time.Second}
}

// openNext opens a keeper. The fd store may not have heard yet that the one before has gone.
func openNext(ctx context.Context, opts Options) (*Server, error) {
	s, err := Open(ctx, opts)
	for errors.Is(err, ErrBusy) && ctx.Err() == nil {
		s, err = Open(ctx, opts)
	}
	return s, err
}

// opened is a keeper that ends with the test.
func opened(t testing.TB, opts Options) *Server {
	t.Helper()
	s := ok(openNext(soon(t), opts))(t)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// hold stops all changes of a keeper until finish.
func hold(s *Server) {
	if err := s.begin(context.Background()); err != nil {
		panic(err)
	}
}

// kept is a keeper and a client of it.
func kept(t testing.TB) (*Server, *client, *cu.Device) {
	t.Helper()
	dev := cutest.Device(t)
	s := opened(t, options(newSocket(t)))
	return s, dialled(t, s.opts.Socket), dev
}

// self is this process, whose user the keeper's is.
func (s *Server) self() state.Who {
	return state.Who{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid()), PID: int32(os.Getpid())}
}

// small is the size of parts of which it does not matter.
const small = 4096

// part is one that is filled with a byte.
func part(i int, dev *cu.Device, fill byte) keeper.Part {
	return keeper.Part{Index: i, Device: dev, Size: small, Write: writeAll(fill)}
}

func writeAll(fill byte) func(context.Context, *vmm.Buffer) error {
	return func(_ context.Context, b *vmm.Buffer) error {
		c, err := b.Device().PrimaryContext()
		if err != nil {
			return err
		}
		defer c.Close()
		return cu.Fill(c, b.Ptr(), fill, b.Size())
	}
}

// put keeps a version of one part.
func put(t testing.TB, c *client, dev *cu.Device, name string, fill byte) keeper.Kept {
	t.Helper()
	k := ok(c.Put(soon(t), keeper.Put{Name: name}, part(0, dev, fill)))(t)
	return k
}

// requireBytes requires that a part holds nothing but a byte, and has the digest that its
// writer declared.
func requireBytes(t testing.TB, a *keeper.Attached, fill byte) {
	t.Helper()
	j := ok(newJudge(a.Device()))(t)
	require.NoError(t, j.check(a.Attachment, a.Data, fill))
	require.NoError(t, j.close())
}

// A judge reads parts on a device. Loading the kernels takes longer than all else.
type judge struct {
	ctx *cu.Context
	sum *digest.Kernel
}

func newJudge(dev *cu.Device) (*judge, error) {
	c, err := dev.PrimaryContext()
	if err != nil {
		return nil, err
	}
	sum, err := digest.Load(c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &judge{c, sum}, nil
}

func (j *judge) close() error { return errors.Join(j.sum.Close(), j.ctx.Close()) }

// check reads all of a part.
func (j *judge) check(a *share.Attachment, d api.Data, fill byte) error {
	got := make([]byte, a.Size())
	if err := cu.CopyToHost(j.ctx, got, a.Ptr()); err != nil {
		return err
	}
	for i, b := range got {
		if b != fill {
			return fmt.Errorf("%s version %d part %d: byte %d is %d and should be %d", d.Name, d.Version, d.Part, i, b, fill)
		}
	}
	sum, err := j.sum.Digest(context.Background(), j.ctx.NullStream(), a.Ptr(), a.Size())
	if got := digest.Algorithm + ":" + sum.String(); err == nil && got != d.Digest {
		err = fmt.Errorf("%s version %d part %d: digest %s, declared %s", d.Name, d.Version, d.Part, got, d.Digest)
	}
	return err
}

// attach takes all parts of a name, which are let go with the test.
func attach(t testing.TB, c *client, dev *cu.Device, name string) []*keeper.Attached {
	t.Helper()
	all := ok(keeper.Attach(soon(t), dev.Driver(), c.Client, name, keeper.Want{}))(t)
	t.Cleanup(func() { letGoOf(t, all) })
	return all
}

func letGoOf(t testing.TB, all []*keeper.Attached) {
	t.Helper()
	for _, a := range all {
		require.NoError(t, a.Close())
	}
}

func stat(t testing.TB, c *client, name string) api.Info {
	t.Helper()
	info := ok(c.Stat(soon(t), name))(t)
	return info
}

// eventually waits until a name is as it should be.
func eventually(t testing.TB, c *client, name string, is func(api.Info) bool) api.Info {
	t.Helper()
	var info api.Info
	require.Eventually(t, func() bool {
		info = stat(t, c, name)
		return is(info)
	}, waitLong, waitStep, "%s", lazily(func() string { return fmt.Sprintf("%+v", info) + fmt.Sprintf(", %#v", info.Holders) }))
	return info
}

// lazily is a text that is made when it is needed.
type lazily func() string

func (f lazily) String() string { return f() }

// requireCode requires err to be a keeper's refusal with that code.
func requireCode(t testing.TB, code string, err error) *api.Error {
	t.Helper()
	var no *api.Error
	require.ErrorAs(t, err, &no)
	require.Equal(t, code, string(no.Code), no.Message)
	return no
}

// shards is how many parts a model has that is sharded.
const shards = 8

// spread are as many devices as a sharded model has parts. Where the machine has fewer, several
// parts share one.
func spread(drv *cu.Driver) (devs []*cu.Device) {
	all := drv.Devices()
	for i := range shards {
		devs = append(devs, all[i%len(all)])
	}
	return devs
}

// dataOf returns the data of an attachment's offer.
func dataOf(t testing.TB, a *share.Attachment) (d api.Data) {
	t.Helper()
	require.NoError(t, json.Unmarshal(a.Offer().Data, &d))
	return d
}

// The time that a test waits for what comes by itself, and the pause before it looks again.
const (
	waitLong = 20 * time.Second
	waitStep = 5 * time.Millisecond
)
