package gpufd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/sockets"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/sock"
)

// An output is where a command prints. It remembers its first failure, and tells it once.
type output struct {
	w      io.Writer
	failed func(error)

	turn sync.Mutex // held while something is written, which may take for ever

	mu  sync.Mutex
	err error
}

func (o *output) Write(b []byte) (int, error) {
	o.turn.Lock()
	defer o.turn.Unlock()
	if err := o.failure(); err != nil {
		return 0, err
	}
	n, err := o.w.Write(b)
	if err != nil {
		err = fmt.Errorf("writing the output: %w", err)
		o.mu.Lock()
		o.err = err
		o.mu.Unlock()
		o.failed(err)
	}
	return n, err
}

// failure returns why not everything was written, or nil.
func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// keeperCode returns the code of a keeper's error, or "".
func keeperCode(err error) string {
	if no := refusalOf(err); no != nil {
		return string(no.Code)
	}
	return ""
}

// refusalOf returns a keeper's error, or nil.
func refusalOf(err error) (no *api.Error) {
	errors.As(err, &no)
	return no
}

// exitCode is cli.ExitCode, with the errors of a keeper.
func exitCode(err error) int {
	code := cli.ExitCode(err)
	if code != cli.ExitFailed {
		return code
	}
	switch keeperCode(err) {
	case "bad-request":
		return cli.ExitUsage
	case "no-room", "expired", "store-lost", "store-silent", "unknown":
		return cli.ExitPeer
	}
	return code
}

// errorFields returns an error for JSON.
func errorFields(err error, text string) app.Fields {
	f := app.Fields{"message": text}
	var no *api.Error
	if errors.As(err, &no) {
		f["code"] = no.Code
		if len(no.Holders) > 0 {
			f["holders"] = no.Holders
		}
	}
	return f
}

// explain returns an error on one line, with what to do about it.
func (p *program) explain(err error) string {
	text := cli.OneLine(err)
	switch {
	case strings.HasPrefix(p.command, "gpufd channel"):
		if errors.Is(err, sock.ErrListening) {
			text += ", for the writer and its readers, with --socket"
		}
	case errors.Is(err, sock.ErrNoListener):
		text += "; start a keeper with gpufd keeper, or name its socket with --socket or " + socketEnv
	case errors.Is(err, errNoAnswer):
		text += "; start the keeper again with gpufd keeper, or wait longer with --timeout"
	case p.named && keeperCode(err) == "not-found":
		text += "; list what is there: gpufd ls"
		if p.socket != sockets.Keeper() && p.socket != os.Getenv(socketEnv) {
			text += " --socket " + p.socket
		}
	}
	return text
}
