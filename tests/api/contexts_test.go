// Package api tests rules that hold for all of the exported API: a call whose context has ended returns its error
// before it does anything else, and zero values do not panic.
package api

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/counter"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/server"
	"github.com/gpufd/gpufd/kernels"
	"github.com/gpufd/gpufd/kernels/digest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
	"github.com/gpufd/gpufd/weights"
)

// storeArgument makes the test binary an fd store.
const storeArgument = "fd-store"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == storeArgument {
		if err := server.RunStore(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	cutest.Main(m)
}

// others take a context and do not belong into the table.
var others = map[string]string{
	"share.Attachment.AwaitFence": "with a context that has ended it only checks, and says so",
	"share.Lease.AwaitFence":      "the same",
	"channel.Reader.AwaitFence":   "the same",
	"share.Server.Shutdown":       "with a context that has ended it waits for nobody, and leaves nothing",
	"share.Current.Close":         "with a context that has ended it waits for nobody; what is in use stays",
}

// A call is made with a context that has ended, of things that are fit for it.
type call func(ctx context.Context) error

// TestEndedContextsAreLookedAtFirst makes every exported call that takes a context, with one that has
// ended. All of them would succeed, wait or fail for another reason. Each returns the context's error.
func TestEndedContextsAreLookedAtFirst(t *testing.T) {
	why := errors.New("why")
	ended, cancel := context.WithCancelCause(context.Background())
	cancel(why)
	table := calls(t)
	for _, name := range slices.Sorted(maps.Keys(table)) {
		t.Run(name, func(t *testing.T) {
			result := make(chan error, 1)
			go func() { result <- table[name](ended) }()
			select {
			case err := <-result:
				require.ErrorIs(t, err, context.Canceled)
				require.ErrorIs(t, err, why)
			case <-time.After(time.Minute):
				t.Fatal("it waits")
			}
		})
	}
	t.Run("all", func(t *testing.T) {
		require.ElementsMatch(t, exported(t), append(slices.Collect(maps.Keys(table)), slices.Collect(maps.Keys(others))...),
			"a call with a context needs a line in calls or others, and no other has one")
	})
}

// exported returns the exported functions and methods whose first argument is a context.
func exported(t *testing.T) (all []string) {
	eachFunction(t, []string{"sock", "share", "counter", "channel", "weights", "keeper", "keeper/server", "vmm", "cu", "kernels", "kernels/digest"}, func(pkg string, f *ast.FuncDecl) {
		if of, public := receiver(f); public && takesContext(f) {
			all = append(all, filepath.Base(pkg)+"."+of+f.Name.Name)
		}
	})
	return all
}

// eachFunction calls f for the exported functions and methods of packages.
func eachFunction(t *testing.T, packages []string, f func(pkg string, d *ast.FuncDecl)) {
	t.Helper()
	for _, pkg := range packages {
		files, err := filepath.Glob("../../" + pkg + "/*.go")
		require.NoError(t, err)
		if len(files) == 0 {
			t.Skip("the sources are not here")
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			require.NoError(t, err)
			for _, d := range file.Decls {
				if d, ok := d.(*ast.FuncDecl); ok && d.Name.IsExported() {
					f(pkg, d)
				}
			}
		}
	}
}

func takesContext(f *ast.FuncDecl) bool {
	if len(f.Type.Params.List) == 0 {
		return false
	}
	s, ok := f.Type.Params.List[0].Type.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Context" && s.X.(*ast.Ident).Name == "context"
}

// receiver returns the type that f is a method of, with a dot, and whether that is exported.
func receiver(f *ast.FuncDecl) (name string, public bool) {
	if f.Recv == nil {
		return "", true
	}
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if generic, ok := of.(*ast.IndexExpr); ok {
		of = generic.X
	}
	id := of.(*ast.Ident)
	return id.Name + ".", id.IsExported()
}

// result leaves out what a call returns beside its error.
func result[T any](_ T, err error) error { return err }

// socketDir is a directory whose name leaves room for that of a socket.
func socketDir(t *testing.T) string {
	dir, err := os.MkdirTemp("/tmp", "ctxfirst")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

// calls makes what is called, and the table.
func calls(t *testing.T) map[string]call {
	dev := cutest.Device(t)
	c := cutest.Context(t, dev)
	bg := context.Background()
	closing := func(c interface{ Close() error }) { t.Cleanup(func() { require.NoError(t, c.Close()) }) }
	dir := socketDir(t)
	path := func(name string) string { return filepath.Join(dir, name) }

	// Sockets: a connection with a record, whose peer is this process.
	listener, err := sock.Listen(path("plain"))
	require.NoError(t, err)
	closing(listener)
	near, err := sock.Dial(bg, listener.Path())
	require.NoError(t, err)
	closing(near)
	far, err := listener.Accept(bg)
	require.NoError(t, err)
	closing(far)
	require.NoError(t, far.Send(bg, []byte("there")))
	self, err := near.Process()
	require.NoError(t, err)
	closing(self)

	// Memory, a stream and kernels.
	buf, err := vmm.New(dev, 4096, vmm.WithCapacity(64<<20))
	require.NoError(t, err)
	closing(buf)
	require.NoError(t, cu.Fill(c, buf.Ptr(), uint8(0), buf.Size()))
	stream, err := c.NewStream()
	require.NoError(t, err)
	closing(stream)
	event, err := c.NewEvent(cu.EventDisableTiming)
	require.NoError(t, err)
	closing(event)
	set, err := kernels.Load(c)
	require.NoError(t, err)
	closing(set)
	sums, err := digest.Load(c)
	require.NoError(t, err)
	closing(sums)
	file, err := os.Create(path("file"))
	require.NoError(t, err)
	require.NoError(t, file.Truncate(4096))
	closing(file)
	segments := []vmm.FileRange{{File: file, Size: 4096}}

	// A server with an offer, a lease and its end here.
	srv, err := share.Listen(path("share"), nil)
	require.NoError(t, err)
	closing(srv)
	leases := make(chan *share.Lease, 8)
	_, err = srv.Offer("w", buf, &share.OfferOptions{OnLease: func(l *share.Lease) { leases <- l }})
	require.NoError(t, err)
	attach := func() *share.Attachment {
		att, err := share.Attach(bg, srv.Path(), "w", dev, nil)
		require.NoError(t, err)
		closing(att)
		return att
	}
	att := attach()
	lease := <-leases
	over := attach()
	(<-leases).Revoke("")
	<-over.Done()
	number, err := counter.New(c, buf, 0)
	require.NoError(t, err)
	closing(number)
	pending, err := srv.Offer("pending", buf, &share.OfferOptions{Pending: true})
	require.NoError(t, err)

	// A channel with a frame.
	w, err := channel.NewWriter(bg, c, srv, "cam", 4, 64)
	require.NoError(t, err)
	closing(w)
	r, err := channel.Open(bg, srv.Path(), "cam", c)
	require.NoError(t, err)
	closing(r)
	slot, err := w.Acquire(bg)
	require.NoError(t, err)
	require.NoError(t, w.Publish(slot, channel.Meta{}))

	// A keeper that keeps something.
	kept, opts := startKeeper(t, path("keeper"))
	part := keeper.Part{Device: dev, Size: 16, Write: func(context.Context, *vmm.Buffer) error { return nil }}
	_, err = kept.Put(bg, keeper.Put{Name: "w"}, part)
	require.NoError(t, err)
	all, err := keeper.Attach(bg, dev.Driver(), kept, "w", keeper.Want{})
	require.NoError(t, err)
	closing(all[0])

	return map[string]call{
		"sock.Dial":              func(ctx context.Context) error { return result(sock.Dial(ctx, listener.Path())) },
		"sock.TakeOver":          func(ctx context.Context) error { return result(sock.TakeOver(ctx, near, path("other"))) },
		"sock.Listener.Accept":   func(ctx context.Context) error { return result(listener.Accept(ctx)) },
		"sock.Listener.HandOver": func(ctx context.Context) error { return listener.HandOver(ctx, far) },
		"sock.Conn.Send":         func(ctx context.Context) error { return near.Send(ctx, []byte("x")) },
		"sock.Conn.Receive":      func(ctx context.Context) error { return result(near.Receive(ctx)) },
		"sock.Conn.WaitClose":    func(ctx context.Context) error { return near.WaitClose(ctx) },
		"sock.Conn.WaitHangup":   func(ctx context.Context) error { return near.WaitHangup(ctx) },
		"sock.Process.Wait":      self.Wait,

		"cu.Driver.WaitToClose": func(ctx context.Context) error { return dev.Driver().WaitToClose(ctx, "x") },
		"cu.Driver.WaitQueued":  dev.Driver().WaitQueued,
		"vmm.Buffer.Release":    buf.Release,
		"vmm.Buffer.Detach":     func(ctx context.Context) error { return result(buf.Detach(ctx)) },
		"share.Attach":          func(ctx context.Context) error { return result(share.Attach(ctx, srv.Path(), "w", dev, nil)) },
		"share.List":            func(ctx context.Context) error { return result(share.List(ctx, srv.Path(), nil)) },
		"share.TakeOver":        func(ctx context.Context) error { return result(share.TakeOver(ctx, near, path("other"), nil)) },
		"share.Follow": func(ctx context.Context) (last error) {
			for _, err := range share.Follow(ctx, srv.Path(), "w", dev, nil) {
				last = err
			}
			return last
		},
		"share.Offer.Publish":       pending.Publish,
		"share.Server.HandOver":     func(ctx context.Context) error { return srv.HandOver(ctx, far) },
		"share.Lease.Notify":        func(ctx context.Context) error { return lease.Notify(ctx, []byte("x")) },
		"share.Attachment.Notify":   func(ctx context.Context) error { return att.Notify(ctx, []byte("x")) },
		"share.Attachment.Progress": func(ctx context.Context) error { return att.Progress(ctx, 1, 2) },
		"share.Attachment.Report":   func(ctx context.Context) error { return att.Report(ctx, nil) },
		"share.Attachment.Release":  att.Release,
		"share.Attachment.Detach":   func(ctx context.Context) error { return result(att.Detach(ctx, 0)) },
		"share.Attachment.Reattach": func(ctx context.Context) error { return result(att.Reattach(ctx, share.Same)) },
		"share.Attachment.Resume":   func(ctx context.Context) error { return result(over.Resume(ctx)) },

		"counter.Counter.Wait":  func(ctx context.Context) error { return result(number.Wait(ctx, stream, 0)) },
		"counter.Counter.Await": func(ctx context.Context) error { return number.Await(ctx, 0) },

		"channel.NewWriter": func(ctx context.Context) error { return result(channel.NewWriter(ctx, c, srv, "other", 4, 64)) },
		"channel.Open":      func(ctx context.Context) error { return result(channel.Open(ctx, srv.Path(), "cam", c)) },
		"channel.Follow": func(ctx context.Context) (last error) {
			for _, err := range channel.Follow(ctx, srv.Path(), "cam", c) {
				last = err
			}
			return last
		},
		"channel.Reader.AwaitWanted":  r.AwaitWanted,
		"channel.Reader.Next":         func(ctx context.Context) error { return result(r.Next(ctx)) },
		"channel.Writer.Acquire":      func(ctx context.Context) error { return result(w.Acquire(ctx)) },
		"channel.Writer.AwaitReaders": func(ctx context.Context) error { return w.AwaitReaders(ctx, 1) },

		"weights.Follow": func(ctx context.Context) (last error) {
			for _, err := range weights.Follow(ctx, "policy", c, nil) {
				last = err
			}
			return last
		},
		"weights.Update.Tensors": func(ctx context.Context) (last error) {
			for _, err := range new(weights.Update).Tensors(ctx) {
				last = err
			}
			return last
		},
		"weights.Update.AwaitWanted": new(weights.Update).AwaitWanted,

		"keeper.Dial":     func(ctx context.Context) error { return result(keeper.Dial(ctx, opts.Socket)) },
		"server.Open":     func(ctx context.Context) error { return result(server.Open(ctx, opts)) },
		"server.TakeOver": func(ctx context.Context) error { return result(server.TakeOver(ctx, opts)) },
		"server.End":      func(ctx context.Context) error { return result(server.End(ctx, opts.Socket)) },
		"server.TakeBack": func(ctx context.Context) error { return result(server.TakeBack(ctx, opts)) },
		"keeper.Attach": func(ctx context.Context) error {
			return result(keeper.Attach(ctx, dev.Driver(), kept, "w", keeper.Want{}))
		},
		"keeper.Digest":               func(ctx context.Context) error { return result(keeper.Digest(ctx, c, buf.Ptr(), 16)) },
		"keeper.Attached.Reattach":    func(ctx context.Context) error { return result(all[0].Reattach(ctx, share.Same)) },
		"keeper.Attached.Digest":      func(ctx context.Context) error { return result(all[0].Digest(ctx)) },
		"keeper.Client.Status":        func(ctx context.Context) error { return result(kept.Status(ctx)) },
		"keeper.Client.List":          func(ctx context.Context) error { return result(kept.List(ctx)) },
		"keeper.Client.Stat":          func(ctx context.Context) error { return result(kept.Stat(ctx, "w")) },
		"keeper.Client.Remove":        func(ctx context.Context) error { return kept.Remove(ctx, "w") },
		"keeper.Client.RemoveVersion": func(ctx context.Context) error { return kept.RemoveVersion(ctx, "w", 1) },
		"keeper.Client.Drain":         func(ctx context.Context) error { return kept.Drain(ctx, "w") },
		"keeper.Client.DrainDevice":   func(ctx context.Context) error { return kept.DrainDevice(ctx, dev.UUID()) },
		"keeper.Client.Undrain":       func(ctx context.Context) error { return kept.Undrain(ctx, "w") },
		"keeper.Client.UndrainDevice": func(ctx context.Context) error { return kept.UndrainDevice(ctx, dev.UUID()) },
		"keeper.Client.Park":          func(ctx context.Context) error { return result(kept.Park(ctx, "w", 0)) },
		"keeper.Client.Unpark":        func(ctx context.Context) error { return result(kept.Unpark(ctx, "w", 0)) },
		"keeper.Client.Report":        func(ctx context.Context) error { return result(kept.Report(ctx, "w", 1, 0, "ok", "none")) },
		"keeper.Client.Yield":         kept.Yield,
		"keeper.Client.Watch":         func(ctx context.Context) error { return kept.Watch(ctx, "w", func(api.Event) bool { return false }) },
		"keeper.Client.Put":           func(ctx context.Context) error { return result(kept.Put(ctx, keeper.Put{Name: "x"}, part)) },

		"vmm.NewWait":      func(ctx context.Context) error { return result(vmm.NewWait(ctx, dev, 16)) },
		"vmm.Buffer.Load":  func(ctx context.Context) error { return buf.Load(ctx, segments, vmm.TransferOptions{}) },
		"vmm.Buffer.Store": func(ctx context.Context) error { return buf.Store(ctx, segments, vmm.TransferOptions{}) },

		"cu.Context.Synchronize": c.Synchronize,
		"cu.Device.Synchronize":  dev.Synchronize,
		"cu.Event.Synchronize":   event.Synchronize,
		"cu.Stream.Synchronize":  stream.Synchronize,
		"cu.Stream.Guard": func(ctx context.Context) error {
			return result(stream.Guard(ctx, func() error { return nil }, func() error { return nil }, func() error { return nil }))
		},

		"digest.Kernel.Digest": func(ctx context.Context) error { return result(sums.Digest(ctx, stream, buf.Ptr(), 16)) },
		"digest.Kernel.AddTo": func(ctx context.Context) error {
			return sums.AddTo(ctx, stream, new(digest.Digester), digest.Part{Ptr: buf.Ptr(), Bytes: 16})
		},
		"kernels.Set.Check":    func(ctx context.Context) error { return result(set.Check(ctx, stream, buf.Ptr(), 16, 0, 0)) },
		"kernels.Set.Checksum": func(ctx context.Context) error { return result(set.Checksum(ctx, stream, buf.Ptr(), 16)) },
	}
}

// startKeeper starts a keeper, which ends with the test, and its store too.
func startKeeper(t *testing.T, socket string) (*keeper.Client, server.Options) {
	opts := server.Options{Socket: socket, Store: []string{"/proc/self/exe", storeArgument}}
	s, err := server.Open(context.Background(), opts)
	require.NoError(t, err)
	store := s.Status().Store
	c, err := keeper.Dial(context.Background(), socket)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		require.NoError(t, s.Close())
		p, err := os.FindProcess(store)
		require.NoError(t, err)
		require.NoError(t, p.Signal(os.Interrupt))
		_, _ = p.Wait()
	})
	return c, opts
}
