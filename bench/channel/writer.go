package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
)

// A writer is the process that answers questions, with readers.
type writer struct {
	side
	args    []string // of readers
	asked   uint64   // questions
	readers []*rival.Rival
}

// handlers are the questions of bench/README.md.
func (w *writer) handlers() map[string]rival.Handler {
	return map[string]rival.Handler{"oneway": w.oneWay, "hosts": w.hosts, "frames": w.frames}
}

func (w *writer) close() (err error) {
	for _, r := range w.readers {
		err = errors.Join(err, r.Close())
	}
	return err
}

// need starts readers until there are n, for the next question.
func (w *writer) need(n uint64) error {
	w.asked++
	for uint64(len(w.readers)) < n {
		self, err := os.Executable()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), lineLimit)
		defer cancel()
		r, err := rival.Start(ctx, "reader", append([]string{self, "-as", "reader", "-dir", w.dir}, w.args...)...)
		if err != nil {
			return err
		}
		w.readers = append(w.readers, r)
	}
	return nil
}

// forget removes what a question has left.
func (w *writer) forget() error { return os.RemoveAll(filepath.Dir(w.path(w.asked, ""))) }

// ask asks a reader.
func ask(r *rival.Rival, format string, args ...any) (rival.Answer, error) {
	r.Tell(format, args...)
	return wait(r)
}

// wait waits for a reader's answer.
func wait(r *rival.Rival) (rival.Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), lineLimit)
	defer cancel()
	return r.Wait(ctx)
}

// chunk is how many frames are queued before a stream begins. A driver that has no room for more
// calls, of which c-single makes 35 for 16 readers, would wait for the stream.
const chunk = 16

// oneWay answers how long frames take from a stream to that of the last of so many readers:
// half of there and back.
func (w *writer) oneWay(args []uint64) (a rival.Answer, err error) {
	if len(args) != 2 || args[0] < 1 || args[0] > channel.MaxReaders || args[1] == 0 || args[1]%chunk != 0 {
		return a, fmt.Errorf("want: oneway READERS ROUNDS, rounds by %d", chunk)
	}
	if err := w.need(args[0]); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, w.forget()) }()
	readers := w.readers[:args[0]]
	srv, out, err := w.newWriter(w.path(w.asked, "there"), backSlots, 256, channel.WithStreams())
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, out.Close(), srv.Close()) }()
	for i, r := range readers {
		answers := 0
		if i == len(readers)-1 {
			answers = 1
		}
		if _, err := ask(r, "stream %d %d", w.asked, answers); err != nil {
			return a, err
		}
	}
	back, err := w.open(w.path(w.asked, "back"), "")
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, back.close()) }()
	e := &exchange{writer: w, out: out, back: back, readers: readers}
	a, err = e.measure(int(args[1]))
	return a, errors.Join(err, end(readers))
}

// end ends the work of readers.
func end(readers []*rival.Rival) error {
	for _, r := range readers {
		if _, err := ask(r, "end"); err != nil {
			return err
		}
	}
	return nil
}

// An exchange is frames by streams, there and back.
type exchange struct {
	*writer
	out        *channel.Writer
	back       *pair
	readers    []*rival.Rival
	gate, done *word
}

// measure passes frames, a chunk at a time.
func (e *exchange) measure(rounds int) (a rival.Answer, err error) {
	if e.gate, err = newWord(e.ctx); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, e.gate.close()) }()
	if e.done, err = newWord(e.ctx); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, e.done.close()) }()
	for n := uint64(0); n < uint64(rounds); n += chunk {
		if err := e.queue(n); err != nil {
			return a, err
		}
		e.gate.p.Store(n + 1)
		before, err := e.done.await(n + 1)
		if err != nil {
			return a, err
		}
		for i := n + 2; i <= n+chunk; i++ {
			at, err := e.done.await(i)
			if err != nil {
				return a, err
			}
			a.Each = append(a.Each, at.Sub(before).Nanoseconds()/2)
			before = at
		}
	}
	return a, nil
}

// queue makes all sides queue the chunk behind frame n, behind a gate.
func (e *exchange) queue(n uint64) error {
	for _, r := range e.readers {
		r.Tell("queue %d", chunk)
	}
	for _, r := range e.readers {
		if _, err := wait(r); err != nil {
			return err
		}
	}
	if err := e.back.s.WaitValue64(e.gate.at, n+1, cu.WaitGEQ); err != nil {
		return err
	}
	for i := n + 1; i <= n+chunk; i++ {
		slot, err := e.out.AcquireOn(e.back.s)
		if err != nil {
			return err
		}
		if err := e.out.PublishOn(e.back.s, slot, channel.Meta{}); err != nil {
			return err
		}
		if err := e.back.answerOn(); err != nil {
			return err
		}
		if err := e.back.s.WriteValue64(e.done.at, i, cu.WriteDefault); err != nil {
			return err
		}
	}
	return nil
}

// hosts answers how long frames take from a CPU to another and back.
func (w *writer) hosts(args []uint64) (a rival.Answer, err error) {
	if len(args) != 1 || args[0] == 0 {
		return a, errors.New("want: hosts ROUNDS")
	}
	if err := w.need(1); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, w.forget()) }()
	srv, out, err := w.newWriter(w.path(w.asked, "there"), backSlots, 256)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, out.Close(), srv.Close()) }()
	r := w.readers[0]
	if _, err := ask(r, "hosts %d", w.asked); err != nil {
		return a, err
	}
	r.Tell("bounce %d", args[0])
	back, err := w.open(w.path(w.asked, "back"), "")
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, back.close()) }()
	a.Each = make([]int64, 0, args[0])
	start := time.Now()
	for range args[0] {
		begin := time.Since(start)
		if err := bounce(back.wait, out, back.r, int64(begin)+1); err != nil {
			return a, err
		}
		a.Each = append(a.Each, int64(time.Since(start)-begin))
	}
	if err := out.Close(); err != nil {
		return a, err
	}
	_, err = wait(r)
	return a, err
}

// bounce publishes a frame of that time and takes the answer.
func bounce(ctx context.Context, out *channel.Writer, back *channel.Reader, at int64) error {
	slot, err := out.Acquire(ctx)
	if err != nil {
		return err
	}
	if err := out.Publish(slot, channel.Meta{Time: at}); err != nil {
		return err
	}
	f, err := back.Next(ctx)
	if err != nil {
		return err
	}
	if f.Time != at {
		return fmt.Errorf("frame %d is of the time %d, not %d", f.Sequence, f.Time, at)
	}
	return back.Release(f)
}

// frames answers how long one frame takes of many that flow.
func (w *writer) frames(args []uint64) (a rival.Answer, err error) {
	if len(args) != 4 || args[0] == 0 || args[0]%4 != 0 || args[2] > 1 || args[3]%mark != 0 || args[3] < 2*ahead {
		return a, fmt.Errorf("want: frames SIZE SLOTS 0|1 COUNT, the size by 4, the count by %d and at least %d", mark, 2*ahead)
	}
	if err := w.need(1); err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, w.forget()) }()
	srv, out, err := w.newWriter(w.path(w.asked, "there"), int(args[1]), args[0], channel.WithStreams())
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, out.Close(), srv.Close()) }()
	r := w.readers[0]
	r.Tell("frames %d %d %d", w.asked, args[3], args[2])
	bounded, cancel := context.WithTimeout(context.Background(), lineLimit)
	defer cancel()
	if err := out.AwaitReaders(bounded, 1); err != nil {
		return a, err
	}
	if err := w.writeFrames(out, args[3]); err != nil {
		return a, err
	}
	return wait(r)
}
