// Weights: a daemon that keeps weights on a GPU for any number of processes.
//
//	weights serve SOCKET   # offers what it reads, a line each: the next replaces the last
//	weights use SOCKET     # prints what is offered, and again when there is something newer
//
// A daemon may be killed: users of the weights follow the next. The line "upgrade" starts the
// program anew, which takes memory and socket over: users get a notice, and nothing else.
package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/examples/go/lesson"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: weights serve|use SOCKET")
	}
	lesson.Run(func(dev *cu.Device, ctx *cu.Context) (err error) {
		d := &daemon{dev: dev, ctx: ctx}
		switch what, socket := os.Args[1], os.Args[2]; what {
		case "use":
			return use(socket, dev, ctx)
		case "upgrade": // started by handOver
			err = d.takeOver(socket)
		default:
			d.srv, err = share.Listen(socket, nil)
		}
		if err == nil {
			d.run()
		}
		defer d.offers.Wait()
		return errors.Join(err, d.srv.Close()) // the leases end, and Follow has others from who listens
	})
}

// patience bounds an upgrade, and how long an old version is kept for its users.
const patience = 10 * time.Second

type daemon struct {
	dev     *cu.Device
	ctx     *cu.Context
	srv     *share.Server
	current *share.Offer
	offers  sync.WaitGroup
}

// run executes the commands it reads, until the end or an upgrade. A failed one changes nothing.
func (d *daemon) run() {
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		var err error
		if in.Text() != "upgrade" {
			err = d.load(in.Text())
		} else if err = d.handOver(); err == nil {
			return
		}
		if err != nil {
			log.Print(err)
		}
	}
}

// load offers text.
func (d *daemon) load(text string) error {
	buf, err := vmm.New(d.dev, uint64(len(text)))
	if err == nil {
		err = cu.CopyToDevice(d.ctx, buf, []byte(text))
	}
	if err != nil {
		return errors.Join(err, buf.Close())
	}
	return d.offer(buf, buf, nil)
}

// offer offers buf instead of what there was, and closes owner when no consumer of this process uses it.
func (d *daemon) offer(buf *vmm.Buffer, owner io.Closer, onLease func(*share.Lease)) error {
	opts := &share.OfferOptions{Grace: patience, OnLease: onLease}
	var next *share.Offer
	var err error
	if d.current == nil {
		next, err = d.srv.Offer("weights", buf, opts)
	} else {
		next, err = d.current.Supersede(buf, opts)
	}
	if err != nil {
		return errors.Join(err, owner.Close())
	}
	d.current = next
	d.offers.Go(func() {
		<-next.Done()
		if err := errors.Join(next.Err(), owner.Close()); err != nil {
			log.Print(err)
		}
	})
	return nil
}

// handOver starts a successor, and gives it the socket when it has the memory.
func (d *daemon) handOver() (err error) {
	wait, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	to, theirs, err := sock.NewPair()
	if err != nil {
		return err
	}
	defer lesson.Close(&err, to)
	f, err := theirs.File()
	if err != nil {
		return errors.Join(err, theirs.Close())
	}
	successor := exec.Command(os.Args[0], "upgrade", d.srv.Path())
	successor.Stdin, successor.Stdout, successor.Stderr = os.Stdin, os.Stdout, os.Stderr
	successor.ExtraFiles = []*os.File{f} // descriptor 3
	if err := errors.Join(successor.Start(), f.Close(), theirs.Close()); err != nil {
		return err
	}
	if _, err = to.Receive(wait); err != nil {
		return err
	}
	return d.srv.HandOver(wait, to)
}

// takeOver is the other side of handOver: it attaches to the memory, and takes the socket.
func (d *daemon) takeOver(socket string) error {
	wait, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	from, err := sock.FromFile(os.NewFile(3, "predecessor"))
	if err != nil {
		return err
	}
	defer from.Close()
	att, err := share.Attach(wait, socket, "weights", d.dev, &share.AttachOptions{Reoffer: true})
	if err != nil {
		return err
	}
	if err = from.Send(wait, []byte("attached")); err == nil {
		d.srv, err = share.TakeOver(wait, from, socket, nil)
	}
	if err != nil {
		return errors.Join(err, att.Close())
	}
	greet := func(l *share.Lease) { _ = l.Notify(context.Background(), []byte("upgraded")) }
	return d.offer(att.Buffer(), att, greet)
}
