package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

func init() { children["successor"] = mortalSuccessor }

// mortalSuccessor takes over.
func mortalSuccessor() error {
	cutest.ExpectLeaks()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s, err := TakeOver(ctx, options(os.Getenv(socketEnv)))
	if err != nil {
		return err
	}
	<-s.Done()
	return s.Close()
}

// yields closes a keeper when another asks it to end, and takes back what that one leaves.
func yields(s *Server) <-chan *Server {
	next := make(chan *Server, 1)
	go func() {
		<-s.Done()
		err := errors.Join(ignore(s.Err(), ErrYielded), s.Close())
		ctx, cancel := context.WithTimeout(context.Background(), 2*waitLong)
		defer cancel()
		n, terr := TakeBack(ctx, s.opts)
		if errors.Join(err, terr) != nil {
			panic(errors.Join(err, terr))
		}
		next <- n
	}()
	return next
}

// A keeper that cannot follow fails while the other one serves, which goes on.
func TestTakeOverFailsEarly(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "x", 1)
	busy := ok(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer busy.Close()
	opts := s.opts
	for _, address := range []string{"nonsense", "127.0.0.1:99999", busy.Addr().String()} {
		opts.Metrics = address
		require.ErrorContains(t, errOf(TakeOver(soon(t), opts)), "an address for metrics")
	}
	opts.Metrics, opts.Grace = "", -1
	require.ErrorContains(t, errOf(TakeOver(soon(t), opts)), "a time of")
	require.NoError(t, s.ctx.Err(), "nobody has asked it to yield")
	requireBytes(t, attach(t, c, dev, "x")[0], 1)
}

// A keeper whose manifest this program cannot read is not asked to yield.
func TestTakeOverOfAnotherFormat(t *testing.T) {
	socket := newSocket(t)
	store, err := fdstore.Spawn(soon(t), socket+storeSuffix, append(storeCommand(), socket+storeSuffix)...)
	require.NoError(t, err)
	l, err := sock.Listen(socket + protocol.ControlSuffix)
	require.NoError(t, err)
	var yielded atomic.Bool
	answered := make(chan error, 1)
	go func() { answered <- laterKeeper(soon(t), l, &yielded) }()
	_, err = TakeOver(soon(t), options(socket))
	require.ErrorContains(t, err, "cannot follow the one that serves")
	require.ErrorContains(t, err, "gpufd-keeper-manifest 2")
	require.NoError(t, <-answered)
	require.False(t, yielded.Load())
	require.NoError(t, l.Close())
	require.NoError(t, store.Close())
}

// laterKeeper answers one client as a keeper of a later program might.
func laterKeeper(ctx context.Context, l *sock.Listener, yielded *atomic.Bool) error {
	conn, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	defer conn.Drop()
	for {
		var r protocol.Request
		if _, err := protocol.Receive(ctx, conn, protocol.MaxMessage, &r); err != nil {
			return ignore(err, sock.ErrPeerLost)
		}
		var files []*os.File
		switch r.Op {
		case protocol.OpManifest:
			f, err := descriptor.Sealed("manifest", []byte("gpufd-keeper-manifest 2\n"))
			if err != nil {
				return err
			}
			files = oneFile(f)
		case protocol.OpYield:
			yielded.Store(true)
		}
		err := protocol.Send(ctx, conn, protocol.Reply{Status: &api.Status{}}, files...)
		if err := errors.Join(err, sock.CloseFiles(files)); err != nil {
			return err
		}
	}
}

// TestFault86_SuccessorDies: a keeper that has yielded goes on if the one that follows is
// killed before it serves. What is kept is there, and clients wait meanwhile.
func TestFault86_SuccessorDies(t *testing.T) {
	for _, step := range []string{"swap:1", "swapped:1"} {
		t.Run(step, func(t *testing.T) {
			dev := cutest.Device(t)
			socket := newSocket(t)
			relay := relayStore(t, socket)
			s := ok(Open(soon(t), options(socket)))(t)
			c := dialled(t, s.opts.Socket)
			put(t, c, dev, "x", 7)
			next := yields(s)
			relay.kill(step)
			cmd := cutest.Child(soon(t), "successor", socketEnv+"="+socket)
			require.ErrorContains(t, cmd.Run(), "killed")
			requireBytes(t, attach(t, c, dev, "x")[0], 7)
			back := <-next
			require.NotNil(t, back)
			put(t, c, dev, "x", 8)
			require.NoError(t, back.Close())
		})
	}
}

// Two keepers that take over at the same time follow one another: one serves in the end.
func TestTwoTakeOver(t *testing.T) {
	dev := cutest.Device(t)
	opts := options(newSocket(t))
	opts.Metrics = freeAddress(t)
	s := ok(Open(soon(t), opts))(t)
	c := dialled(t, opts.Socket)
	put(t, c, dev, "x", 3)
	took := make(chan *Server, 2)
	before := yields(s)
	for range 2 {
		go func() {
			s, err := TakeOver(soon(t), opts)
			if err != nil {
				t.Error(err)
			}
			took <- s
			<-s.Done() // it has yielded, or the test is over
			if err := errors.Join(ignore(ignore(s.Err(), ErrYielded), share.ErrClosed), s.Close()); err != nil {
				t.Error(err)
			}
		}()
	}
	first, second := <-took, <-took
	require.False(t, t.Failed())
	require.Nil(t, <-before, "its successor serves")
	require.Eventually(t, func() bool { return (first.ctx.Err() == nil) != (second.ctx.Err() == nil) }, waitLong, waitStep)
	requireBytes(t, attach(t, c, dev, "x")[0], 3)
	answer := ok(http.Get("http://" + opts.Metrics + "/healthz"))(t)
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, errors.Join(err, answer.Body.Close()))
	require.Equal(t, "serving\n", string(text))
	other := options(newSocket(t))
	other.Metrics = opts.Metrics
	require.ErrorContains(t, errOf(Open(soon(t), other)), "an address for metrics", "of a keeper that nobody takes over")
	require.NoError(t, errors.Join(first.Close(), second.Close()))
}

// freeAddress is one that nobody listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	l := ok(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().String()
}
