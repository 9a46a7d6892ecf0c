package main

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/sock"
)

// An output is where a command prints. It remembers that it could not, and tells once.
type output struct {
	w      io.Writer
	failed func(error)

	mu  sync.Mutex
	err error
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return 0, o.err
	}
	n, err := o.w.Write(b)
	if err != nil {
		o.err = fmt.Errorf("writing the output: %w", err)
		o.failed(o.err)
	}
	return n, err
}

// failure is why not all was written, or nil.
func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// exitCode is that of all programs, which know no keeper's errors.
func exitCode(err error) int {
	code := cli.ExitCode(err)
	var no *keeper.Error
	if code != cli.ExitFailed || !errors.As(err, &no) {
		return code
	}
	switch no.Code {
	case "bad-request":
		return cli.ExitUsage
	case "no-room", "expired", "store-lost":
		return cli.ExitPeer
	}
	return code
}

// errorFields is an error in JSON.
func errorFields(err error, text string) cli.Fields {
	f := cli.Fields{"message": text}
	var no *keeper.Error
	if errors.As(err, &no) {
		f["code"] = no.Code
		if len(no.Holders) > 0 {
			f["holders"] = no.Holders
		}
	}
	return f
}

// explain is an error in one line, with what to do about it.
func (p *program) explain(err error) string {
	text := cli.OneLine(err)
	switch {
	case errors.Is(err, sock.ErrNoListener):
		text += "; start a keeper with gpufd keeper, or name its socket by --socket or " + socketEnv
	case errors.Is(err, errNoAnswer):
		text += "; start the keeper again with gpufd keeper, or wait longer with --timeout"
	}
	return text
}
