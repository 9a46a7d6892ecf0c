package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
)

// A task is what the writer tells a reader's process, on a line of JSON.
type task struct {
	Do    string // "stream", "hosts" or "frames", and then, of a stream, "queue" or "end"
	Path  string // of the channel
	Back  string // where the reader answers, by a channel of its own, or ""
	Count int    // frames

	Copies bool // the reader copies to the host; or it has a kernel read
}

// A reply is a reader's, on a line of JSON.
type reply struct {
	Error string
	NS    int64 // for a frame
}

// lineLimit is how long a call that waits for another process may take.
const lineLimit = 2 * time.Minute

// A side is what both processes have.
type side struct {
	ctx *cu.Context
	ptx string
}

// stream makes a stream.
func (s side) stream() (*cu.Stream, error) { return s.ctx.NewStream() }

// A reader is a process that takes frames.
type reader struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func startReader(args ...string) (*reader, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, append(args, "-as", "reader")...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := &reader{cmd, in, json.NewDecoder(out)}
	if _, err := r.wait(); err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// tell gives it a task; wait waits for the reply.
func (r *reader) tell(t task) error { return json.NewEncoder(r.in).Encode(t) }

func (r *reader) wait() (p reply, err error) {
	if err := r.out.Decode(&p); err != nil {
		return p, fmt.Errorf("a reader is gone: %w", err)
	}
	if p.Error != "" {
		return p, fmt.Errorf("reader: %s", p.Error)
	}
	return p, nil
}

// ask is both.
func (r *reader) ask(t task) (reply, error) {
	if err := r.tell(t); err != nil {
		return reply{}, err
	}
	return r.wait()
}

func (r *reader) close() error {
	_ = r.in.Close()
	return r.cmd.Wait()
}

// beReader does tasks until its input ends.
func beReader(s side, in io.Reader, out io.Writer) error {
	tasks, replies := json.NewDecoder(in), json.NewEncoder(out)
	next := func() (t task, err error) { return t, tasks.Decode(&t) }
	say := func(p reply, err error) error {
		if err != nil {
			p.Error = program.OneLine(err)
		}
		return replies.Encode(p)
	}
	if err := say(reply{}, nil); err != nil {
		return err
	}
	for {
		t, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var p reply
		switch t.Do {
		case "stream":
			err = s.answerByStream(t, next, say)
		case "hosts":
			err = s.answerByHost(t, say)
		case "frames":
			p, err = s.takeFrames(t)
		default:
			err = fmt.Errorf("no such task: %q", t.Do)
		}
		if err := say(p, err); err != nil {
			return err
		}
	}
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

// open joins the channel of a task. A channel for the way back is there before.
func (s side) open(t task, opts ...channel.WriterOption) (p *pair, err error) {
	p = &pair{}
	p.wait, p.stop = context.WithTimeout(context.Background(), lineLimit)
	if t.Back != "" {
		p.srv, p.w, err = s.newWriter(t.Back, backSlots, 256, opts...)
	}
	if err == nil {
		p.r, err = channel.Open(p.wait, t.Path, "frames", s.ctx)
	}
	if err == nil {
		p.s, err = s.stream()
	}
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

func (p *pair) close() error {
	p.stop()
	err := errors.Join(p.r.Close(), p.w.Close())
	if p.srv != nil {
		err = errors.Join(err, p.srv.Close())
	}
	return errors.Join(err, p.s.Close())
}

// newWriter listens at path and makes a channel there.
func (s side) newWriter(path string, slots int, size uint64, opts ...channel.WriterOption) (*share.Server, *channel.Writer, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, err
	}
	srv, err := share.Listen(path)
	if err != nil {
		return nil, nil, err
	}
	w, err := channel.NewWriter(s.ctx, srv, "frames", slots, size, opts...)
	if err != nil {
		return nil, nil, errors.Join(err, srv.Close())
	}
	return srv, w, nil
}

// answerByStream has a stream take frames and, where there is a way back, answer each.
func (s side) answerByStream(t task, next func() (task, error), say func(reply, error) error) (err error) {
	p, err := s.open(t, channel.WithStreams())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := say(reply{}, nil); err != nil {
		return err
	}
	for {
		t, err := next()
		if err != nil || t.Do == "end" {
			return errors.Join(err, p.s.Synchronize(p.wait))
		}
		for i := 0; i < t.Count && err == nil; i++ {
			err = p.answerOn()
		}
		if err != nil {
			return err
		}
		if err := say(reply{}, nil); err != nil {
			return err
		}
	}
}

// answerOn queues one frame.
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

// answerByHost takes frames and answers each, on the CPU.
func (s side) answerByHost(t task, say func(reply, error) error) (err error) {
	p, err := s.open(t)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	if err := say(reply{}, nil); err != nil {
		return err
	}
	if err := p.w.AwaitReaders(p.wait, 1); err != nil {
		return err
	}
	for range t.Count {
		f, err := p.r.Next(p.wait)
		if err != nil {
			return err
		}
		if err := p.r.Release(f); err != nil {
			return err
		}
		slot, err := p.w.Acquire(p.wait)
		if err != nil {
			return err
		}
		if err := p.w.Publish(slot, channel.Meta{Time: f.Time}); err != nil {
			return err
		}
	}
	for { // until the other side has had the last
		if _, err := p.r.Next(p.wait); err != nil {
			if errors.Is(err, channel.ErrEnded) {
				return nil
			}
			return err
		}
	}
}
