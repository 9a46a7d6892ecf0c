// Command ladder is a rival of the handoff benchmark, in Go. Without flags it does
// what c/handoff.c does in mode before, in the same messages. Each flag adds one thing
// that a program does which uses this project; what that takes is the difference to the
// time without the flag.
//
// Without flags both processes make raw driver calls on one locked thread, which
// blocks in sendmsg and recvmsg without the scheduler's knowing. Either process can be
// that of handoff.c: give -with to one of the two.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/gpufd/gpufd/bench/internal/program"
	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
)

// sides is a word for both processes, or PRODUCER/CONSUMER.
type sides struct {
	words [2]string
	known []string
}

func (s *sides) String() string { return "" }

func (s *sides) Set(v string) error {
	words := strings.Split(v, "/")
	if len(words) == 1 {
		words = append(words, v)
	}
	for _, w := range words {
		if len(words) > 2 || !slices.Contains(s.known, w) {
			return fmt.Errorf("want %s, or PRODUCER/CONSUMER of these", strings.Join(s.known, "|"))
		}
	}
	s.words = [2]string(words)
	return nil
}

// own is the word for this process.
func (o *options) own(s sides) string {
	if o.half == "consumer" {
		return s.words[1]
	}
	return s.words[0]
}

func anyOf(known ...string) sides {
	return sides{words: [2]string{known[0], known[0]}, known: known}
}

type options struct {
	driver     string
	half       string
	with       string
	trace      string
	wait       sides
	calls      sides
	lock       sides
	hop        sides
	bind       sides
	deadlines  string
	properties bool
	readOnly   bool
	bare       bool
	rehearsed  bool
	connect    bool
}

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the program; it returns the exit code.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o := options{
		wait: anyOf("raw", "block", "poll", "sock", "spin"), calls: anyOf("raw", "cu", "vmm"),
		lock: anyOf("yes", "no"), hop: anyOf("no", "yes"), bind: anyOf("no", "yes"),
	}
	flags := flag.NewFlagSet("ladder", flag.ContinueOnError)
	flags.StringVar(&o.driver, "driver", "cuda", "`cuda|soft`")
	flags.StringVar(&o.half, "half", "producer", "`producer|consumer`: the consumer's socket is descriptor 3")
	flags.StringVar(&o.with, "with", "", "start `COMMAND:ARG:…` as the consumer, instead of this program with these flags")
	flags.StringVar(&o.trace, "trace", "", "write execution traces into `FILE`.producer and FILE.consumer")
	flags.Var(&o.wait, "wait", "`raw|block|poll|sock|spin`: system calls that the scheduler does not know of; that it knows of; the poller; package sock; raw, but asking again and again during a handoff")
	flags.Var(&o.calls, "calls", "`raw|cu|vmm`: driver calls; package cu in the consumer; package vmm, which needs no current context")
	flags.Var(&o.lock, "lock", "`yes|no`: the goroutine keeps its thread")
	flags.Var(&o.bind, "bind", "`yes|no`: raw calls set the context in the crossing; without -lock they do in any case")
	flags.Var(&o.hop, "hop", "`yes|no`: another goroutine receives and passes on what came")
	flags.StringVar(&o.deadlines, "deadlines", "no", "`no|handoff|each`: with -wait sock, a wait has no deadline; that of the handoff; one of its own")
	flags.BoolVar(&o.bare, "bare", false, "a descriptor that comes is made no os.File (-wait raw, block or spin)")
	flags.BoolVar(&o.rehearsed, "rehearse", false, "the consumer, when it is woken, imports and maps other memory once")
	flags.BoolVar(&o.connect, "connect", false, "each handoff has a connection of its own, made when the consumer is woken")
	flags.BoolVar(&o.properties, "properties", false, "raw: the import asks for the memory's properties, too")
	flags.BoolVar(&o.readOnly, "readonly", false, "the consumer maps read-only")
	return program.Run(flags, args, stdout, stderr, func() error {
		if err := o.check(); err != nil {
			return err
		}
		end, err := program.Trace(o.trace, o.half)
		if err != nil {
			return err
		}
		if o.half == "consumer" {
			return errors.Join(consume(&o, args), end())
		}
		p, err := newProducer(&o, args)
		if err != nil {
			return errors.Join(rival.Refuse(stdout, err), err, end())
		}
		return errors.Join(p.serve(stdin, stdout), end())
	})
}

// check finds what flags cannot.
func (o *options) check() error {
	switch {
	case !slices.Contains([]string{"no", "handoff", "each"}, o.deadlines):
		return usage("-deadlines %q: want no, handoff or each", o.deadlines)
	case o.half != "producer" && o.half != "consumer":
		return usage("-half %q: want producer or consumer", o.half)
	case o.own(o.hop) == "yes" && (o.own(o.wait) == "spin" || o.deadlines == "handoff" || o.connect):
		return usage("-hop: not with what changes when a handoff begins")
	}
	return nil
}

// A side is what producer and consumer have in common.
type side struct {
	*options
	dev  *cu.Device
	ctx  *cu.Context
	link link
	home link // that the handoff's own was sent on, while there is one

	kept     descriptor // to rehearse with
	keptSize uint64
}

// meet goes on with a connection for one handoff. It owns fd.
func (s *side) meet(fd int) error {
	l, err := newLink(s.options, fd)
	if err == nil {
		s.home, s.link = s.link, l
	}
	return err
}

// part ends a handoff.
func (s *side) part() (err error) {
	s.link.end()
	if s.home != nil {
		err = s.link.close()
		s.link, s.home = s.home, nil
	}
	return err
}

// open opens the driver, and keeps this goroutine's thread if it is to.
func (o *options) open() (s side, err error) {
	drv, err := program.Open(o.driver)
	if err != nil {
		return s, err
	}
	s.options, s.kept = o, none
	if s.dev, err = drv.Device(0); err != nil {
		return s, err
	}
	if s.ctx, err = s.dev.PrimaryContext(); err != nil {
		return s, err
	}
	if o.own(o.lock) == "yes" {
		err = keepThread(s.ctx)
	}
	return s, err
}

// usage is a mistake that flags cannot find.
func usage(format string, args ...any) error { return cli.Usagef(format, args...) }
