package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// serve offers a buffer until there are no more orders.
func serve(do task) error {
	st := testenv.Got(openStage())
	buf := testenv.Got(st.newBuffer())
	testenv.Must(st.fill(buf, offerSize, do.Salt))
	var counts tally
	plant := plants[do.What]
	srv := testenv.Got(share.Listen(do.Socket, &share.ListenOptions{Timeout: do.Timeout, OnRefused: func(peer sock.Peer, err error) {
		e := share.Event{Kind: peerRefused, Peer: peer, Err: err}
		counts.note(e)
		if plant != nil {
			plant(st, buf, e)
		}
	}}))
	observe := func(e share.Event) {
		counts.note(e)
		if plant != nil {
			plant(st, buf, e)
		}
	}
	offer := testenv.Got(srv.Offer(cli.OfferName, buf, offered(do.Salt, observe)))
	err := obey(func(context.Context) error { return nil }, counts.all)
	return errors.Join(err, offer.Close(), srv.Close(), buf.Close(), st.close())
}

// peerRefused is the kind of events of OnRefused.
const peerRefused share.EventKind = 100

// offered are the options of a child's offer.
func offered(salt uint32, observe func(share.Event)) *share.OfferOptions {
	meta := pattern.Meta{Count: pattern.Count(offerSize), Salt: salt}
	return &share.OfferOptions{Data: meta.Encode(), Verdict: true, OnEvent: observe}
}

// Counters of a producer, beside the kinds of events.
const (
	countVerified = "verified" // leases that ended well
	countLost     = "lost"     // leases whose consumer left without a verdict
	countOther    = "other"    // leases that ended in another way
)

func (c *tally) note(e share.Event) {
	c.add(e.Kind.String(), 1)
	if e.Kind != share.Ended {
		return
	}
	switch {
	case e.Err == nil:
		c.add(countVerified, 1)
	case errors.Is(e.Err, sock.ErrPeerLost):
		c.add(countLost, 1)
	default:
		c.add(countOther, 1)
	}
}

// Counters of a consumer.
const (
	countHandoffs = "handoffs"
	countMissed   = "missed"     // the producer was not there, or died
	countSlowest  = "slowest µs" // handoff
)

// consumeForEver hands over again and again while it may. Each takes no longer than the
// task's timeout.
func consumeForEver(do task) error {
	return overAndOver(func(_ context.Context, st *stage, counts *tally) error { return st.consumeOnce(do, counts) })
}

// overAndOver does something between the orders to go and to halt, until it fails.
func overAndOver(something func(context.Context, *stage, *tally) error) error {
	st := testenv.Got(openStage())
	var counts tally
	err := obey(func(ctx context.Context) error {
		for ctx.Err() == nil {
			if err := something(ctx, st, &counts); err != nil {
				return err
			}
		}
		return nil
	}, counts.all)
	return errors.Join(err, st.close())
}

func (st *stage) consumeOnce(do task, counts *tally) error {
	ctx, cancel := context.WithTimeout(context.Background(), do.Timeout)
	defer cancel()
	begun := time.Now()
	err := st.handOver(ctx, do.Socket)
	dead := errors.Is(err, sock.ErrNoListener) || errors.Is(err, sock.ErrPeerLost)
	switch {
	case err == nil:
		counts.add(countHandoffs, 1)
		counts.most(countSlowest, int(time.Since(begun).Microseconds()))
		return nil
	case do.Lenient && dead:
		counts.add(countMissed, 1)
		time.Sleep(time.Millisecond) // the next producer takes its time
		return nil
	}
	return fmt.Errorf("after %s: %w", time.Since(begun), err)
}

// The points at which a consumer dies, by its own hand or, at the last two, by
// that of the test.
const (
	dieConnected = "connected" // and nothing said
	dieReceived  = "received"  // before importing
	dieImporting = "importing" // after some of the steps
	dieMapped    = "mapped"
	dieVerifying = "verifying" // at any moment of it
	dieReporting = "reporting" // likewise
	dieAnywhere  = "anywhere"
	dieStarting  = "starting" // mostly before connecting
)

// consumeAndDie hands over as often as the task says, and prints a line each
// time. Then it dies.
func consumeAndDie(do task) error {
	st := testenv.Got(openStage())
	endless := do.What == dieAnywhere || do.What == dieStarting
	for i := 0; i < do.Count || endless; i++ {
		testenv.Must(st.handOver(context.Background(), do.Socket))
		fmt.Println("handoff")
	}
	return st.consumeHalf(do)
}

// consumeHalf is a handoff in the middle of which this process dies. It returns
// if it did not come so far.
func (st *stage) consumeHalf(do task) error {
	at := func(point string) {
		if do.What == point {
			die()
		}
	}
	att := testenv.Got(share.Attach(context.Background(), do.Socket, cli.OfferName, st.dev,
		&share.AttachOptions{OnConnected: func(sock.Peer) { at(dieConnected) }, OnReceived: func(share.OfferInfo, []*os.File) {
			at(dieReceived)
			if do.What == dieImporting {
				time.AfterFunc(time.Duration(do.Count%4)*50*time.Microsecond, die)
			}
		}}))
	at(dieMapped)
	time.AfterFunc(do.After, die)
	for do.What == dieVerifying {
		testenv.Must(st.look(att))
	}
	_ = att.Report(context.Background(), nil)
	_ = att.Close()
	select {} // until the timer goes off
}

// The points at which a producer dies. The others are kinds of events, of the
// lease that the task counts.
const (
	dieListening = "listening" // and nobody expected
	dieExpecting = "expecting" // while consumers wait
	dieFilling   = "filling"   // while consumers have mapped the memory
)

// produceAndDie offers a buffer, and dies somewhere in between. Without a point
// to die at it ends when there are no more orders.
func produceAndDie(do task) error {
	st := testenv.Got(openStage())
	srv := testenv.Got(share.Listen(do.Socket, nil))
	if do.What == dieListening {
		die()
	}
	opts := offered(do.Salt, func(e share.Event) {
		if e.Kind.String() == do.What && e.Lease >= do.Count {
			die()
		}
	})
	opts.Pending = true
	offer := testenv.Got(srv.Offer(cli.OfferName, nil, opts))
	if do.What == dieExpecting {
		time.AfterFunc(do.After, die)
		select {}
	}
	buf := testenv.Got(st.newBuffer())
	testenv.Must(offer.Provide(buf))
	if do.What == dieFilling {
		time.AfterFunc(do.After, die)
		for {
			testenv.Must(st.fill(buf, offerSize/2, do.Salt))
		}
	}
	testenv.Must(st.fill(buf, offerSize, do.Salt))
	testenv.Must(offer.Publish(context.Background()))
	err := obey(func(context.Context) error { return nil }, func() map[string]int { return nil })
	return errors.Join(err, offer.Close(), srv.Close(), buf.Close(), st.close())
}
