package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// An successor serves until a successor asks for its place, and then until the leases that it
// has are over. The first makes the memory; each other takes it and the socket over from
// the one that listens for it at do.What.
func succeedProducer(do task) error {
	st := testenv.Got(openStage())
	successor := testenv.Got(sock.Listen(successorSocket(do.Socket, do.Count)))
	srv, buf, closeMemory, err := st.succeed(do)
	if err != nil {
		return err
	}
	data := strconv.AppendInt(nil, int64(os.Getpid()), 10)
	offer := testenv.Got(srv.Offer(cli.OfferName, buf, &share.OfferOptions{Data: data}))
	fmt.Println("serving")
	err = handOverTo(do, successor, srv, offer)
	return errors.Join(err, srv.Close(), successor.Close(), closeMemory(), st.close())
}

// successorSocket is where successor number n listens for the next.
func successorSocket(socket string, n int) string { return socket + "." + strconv.Itoa(n) }

// succeed makes a server, and has memory for it.
func (st *stage) succeed(do task) (*share.Server, *vmm.Buffer, func() error, error) {
	if do.Count == 0 {
		buf, err := st.newBuffer()
		if err != nil {
			return nil, nil, nil, err
		}
		srv, err := share.Listen(do.Socket, nil)
		return srv, buf, buf.Close, errors.Join(err, st.fill(buf, buf.Size(), do.Salt))
	}
	ctx, cancel := context.WithTimeout(context.Background(), do.Timeout)
	defer cancel()
	att, err := share.Attach(ctx, do.Socket, cli.OfferName, st.dev, &share.AttachOptions{Reoffer: true})
	if err != nil {
		return nil, nil, nil, err
	}
	from, err := sock.Dial(ctx, successorSocket(do.Socket, do.Count-1))
	if err != nil {
		return nil, nil, nil, err
	}
	srv, err := share.TakeOver(ctx, from, do.Socket, nil)
	return srv, att.Buffer(), att.Close, errors.Join(err, from.Close())
}

// handOverTo hands the server over to the next successor, and waits until nobody else has a lease
// of it. Without an successor it ends with the input.
func handOverTo(do task, successor *sock.Listener, srv *share.Server, offer *share.Offer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	orders := readOrders()
	go func() {
		defer cancel()
		for range orders {
		}
	}()
	next, err := successor.Accept(ctx)
	if err != nil {
		return ignoring(err, context.Canceled)
	}
	limit, stop := context.WithTimeout(context.Background(), do.Timeout)
	defer stop()
	if err := srv.HandOver(limit, next); err != nil {
		return err
	}
	for _, l := range offer.Leases() {
		if l.Peer() != next.Peer() {
			<-l.Done()
		}
	}
	return next.Close()
}

func ignoring(err, ignored error) error {
	if errors.Is(err, ignored) {
		return nil
	}
	return err
}

// checkOwner attaches and leaves, over and over. Nothing may go wrong, and the pid that it sees
// is that of the process that serves it.
func checkOwner(do task) error {
	return overAndOver(func(_ context.Context, st *stage, counts *tally) error {
		err := st.checkOnce(do)
		if err == nil {
			counts.add(countHandoffs, 1)
		}
		return err
	})
}

func (st *stage) checkOnce(do task) error {
	ctx, cancel := context.WithTimeout(context.Background(), do.Timeout)
	defer cancel()
	att, err := share.Attach(ctx, do.Socket, cli.OfferName, st.dev, nil)
	if err != nil {
		return err
	}
	pid := att.Offer().Producer.PID
	if want := fmt.Append(nil, pid); !bytes.Equal(want, att.Offer().Data) {
		err = fmt.Errorf("the producer seems to be %d and is %s", pid, att.Offer().Data)
	}
	b := make([]byte, att.Size())
	err = errors.Join(err, cu.CopyToHost(st.ctx, b, att.Ptr()), unix.Kill(int(pid), 0), att.Err())
	if wrong := pattern.Check(b, 0, do.Salt); err == nil && wrong.Wrong > 0 {
		err = &wrong
	}
	return errors.Join(err, att.Close())
}

// upgrades is how many there are: on a GPU a process takes longer to start.
var upgrades = map[cu.Kind]int{cu.Soft: 50, cu.CUDA: 10}[cutest.Kind()]

// TestFault85_UpgradeUnderLoad: each producer is replaced by the next, which takes its memory
// and its socket over, and then ends. No consumer is refused or loses its lease; each
// sees the pid of the process that serves it, and the bytes of the first.
func TestFault85_UpgradeUnderLoad(t *testing.T) {
	s := programs.NewScene(t)
	do := task{Timeout: programs.Patience, Salt: 7}
	successor := child(s, actSuccessor, do)
	successor.WaitLine("serving")
	checkers := map[string]*programs.Process{}
	for i := range 3 {
		checkers[strconv.Itoa(i+1)] = child(s, actChecker, do)
	}
	require.NoError(t, complaint(tell(checkers, orderGo)))
	dev := cutest.Device(t)
	for range upgrades {
		do.Count++
		next := child(s, actSuccessor, do)
		next.WaitLine("serving")
		att, err := share.Attach(t.Context(), s.Socket, cli.OfferName, dev, nil)
		require.NoError(t, err)
		require.EqualValues(t, next.PID(), att.Offer().Producer.PID)
		require.NoError(t, dismiss(successor))
		require.NoError(t, att.Err())
		require.NoError(t, att.Close())
		successor = next
	}
	require.NoError(t, complaint(tell(checkers, orderHalt)))
	for name, v := range checkers {
		usage, err := askUsage(v)
		require.NoError(t, err)
		require.Greater(t, usage.Counts[countHandoffs], upgrades, "checker %s", name)
		require.NoError(t, dismiss(v))
	}
	require.NoError(t, dismiss(successor))
}
