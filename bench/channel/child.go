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
	"github.com/gpufd/gpufd/share"
)

// lineLimit is how long a call that waits for another process may take.
const lineLimit = 2 * time.Minute

// A side is what both processes have.
type side struct {
	ctx *cu.Context
	ptx string
	dir string
}

// path is where a channel of a question is, by the question's number.
func (s side) path(question uint64, name string) string {
	return filepath.Join(s.dir, fmt.Sprint(question), name)
}

// A reader is a process that takes frames, a rival whose questions the writer asks.
type reader struct {
	side
	p *pair // of a question that takes several requests
}

func (r *reader) handlers() map[string]rival.Handler {
	return map[string]rival.Handler{"stream": r.stream, "queue": r.queue, "end": r.end, "hosts": r.hosts, "bounce": r.bounce, "frames": r.frames}
}

// join joins the channel of a question and, if this side answers, opens the way back.
func (r *reader) join(question uint64, answers bool, opts ...channel.WriterOption) error {
	err := r.leave()
	if err == nil {
		r.p, err = r.open(r.path(question, "there"), r.back(question, answers), opts...)
	}
	return err
}

func (r *reader) back(question uint64, answers bool) string {
	if answers {
		return r.path(question, "back")
	}
	return ""
}

func (r *reader) leave() (err error) {
	if r.p != nil {
		err = r.p.close()
	}
	r.p = nil
	return err
}

// stream QUESTION ANSWERS opens a channel for a stream. queue COUNT queues so many frames, and end waits for all.
func (r *reader) stream(args []uint64) (rival.Answer, error) {
	return rival.Answer{}, r.join(args[0], args[1] == 1, channel.WithStreams())
}

func (r *reader) queue(args []uint64) (a rival.Answer, err error) {
	for i := uint64(0); i < args[0] && err == nil; i++ {
		err = r.p.answerOn()
	}
	return a, err
}

func (r *reader) end([]uint64) (rival.Answer, error) {
	return rival.Answer{}, errors.Join(r.p.s.Synchronize(r.p.wait), r.leave())
}

// hosts QUESTION joins a channel whose frames the CPU takes; bounce COUNT takes them and answers each.
func (r *reader) hosts(args []uint64) (rival.Answer, error) {
	return rival.Answer{}, r.join(args[0], true)
}

func (r *reader) bounce(args []uint64) (a rival.Answer, err error) {
	defer func() { err = errors.Join(err, r.leave()) }()
	p := r.p
	if err := p.w.AwaitReaders(p.wait, 1); err != nil {
		return a, err
	}
	for range args[0] {
		f, err := p.r.Next(p.wait)
		if err != nil {
			return a, err
		}
		if err := p.r.Release(f); err != nil {
			return a, err
		}
		slot, err := p.w.Acquire(p.wait)
		if err != nil {
			return a, err
		}
		if err := p.w.Publish(slot, channel.Meta{Time: f.Time}); err != nil {
			return a, err
		}
	}
	for { // until the other side has had the last
		if _, err := p.r.Next(p.wait); err != nil {
			if errors.Is(err, channel.ErrEnded) {
				return a, nil
			}
			return a, err
		}
	}
}

// frames QUESTION COUNT COPIES answers how long one frame took.
func (r *reader) frames(args []uint64) (a rival.Answer, err error) {
	a.NS, err = r.takeFrames(r.path(args[0], "there"), args[1], args[2] == 1)
	return a, err
}

// A pair is a channel that is read here and, if it answers, one that is written.
type pair struct {
	r    *channel.Reader
	srv  *share.Server
	w    *channel.Writer
	s    *cu.Stream
	wait context.Context
	stop context.CancelFunc
}

// backSlots is how many slots the channels have by which only numbers are passed.
const backSlots = 8

// open joins the channel at path. One for the way back, if there is one, is there before.
func (s side) open(path, back string, opts ...channel.WriterOption) (p *pair, err error) {
	p = &pair{}
	p.wait, p.stop = context.WithTimeout(context.Background(), lineLimit)
	if back != "" {
		p.srv, p.w, err = s.newWriter(back, backSlots, 256, opts...)
	}
	if err == nil {
		p.r, err = channel.Open(p.wait, path, "frames", s.ctx)
	}
	if err == nil {
		p.s, err = s.ctx.NewStream()
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *pair) close() error {
	p.stop()
	return errors.Join(p.r.Close(), p.w.Close(), p.srv.Close(), p.s.Close())
}

// newWriter listens at path and makes a channel there.
func (s side) newWriter(path string, slots int, size uint64, opts ...channel.WriterOption) (*share.Server, *channel.Writer, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, err
	}
	srv, err := share.Listen(path, nil)
	if err != nil {
		return nil, nil, err
	}
	w, err := channel.NewWriter(context.Background(), s.ctx, srv, "frames", slots, size, opts...)
	if err != nil {
		return nil, nil, errors.Join(err, srv.Close())
	}
	return srv, w, nil
}

// answerOn queues one frame and, where there is a way back, the answer.
func (p *pair) answerOn() error {
	f, err := p.r.NextOn(p.s)
	if err != nil {
		return err
	}
	if err := p.r.ReleaseOn(p.s, f); err != nil || p.w == nil {
		return err
	}
	slot, err := p.w.AcquireOn(p.s)
	if err != nil {
		return err
	}
	return p.w.PublishOn(p.s, slot, channel.Meta{})
}
