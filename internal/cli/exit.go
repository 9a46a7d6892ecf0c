package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// The exit codes of every command.
const (
	ExitOK      = 0 // done and verified, or ended by a signal while serving
	ExitFailed  = 1 // wrong data, too large, refused; no such file, device, name or kernel; arguments that do not fit the kernel; nobody listens
	ExitUsage   = 2 // wrong usage, which the command line alone shows: flags, missing arguments, malformed sizes, overlong paths
	ExitMachine = 3 // no driver, broken driver, no such feature
	ExitPeer    = 4 // timed out, or the peer was lost
)

// A codedError carries the exit code that its error stands for.
type codedError struct {
	error
	code int
}

func (e codedError) Unwrap() error { return e.error }

// Usagef returns an error of wrong usage.
func Usagef(format string, args ...any) error {
	return codedError{fmt.Errorf(format, args...), ExitUsage}
}

// Machinef returns an error of the machine: it lacks something.
func Machinef(format string, args ...any) error {
	return codedError{fmt.Errorf(format, args...), ExitMachine}
}

// Codef returns an error with that exit code.
func Codef(code int, format string, args ...any) error {
	return codedError{fmt.Errorf(format, args...), code}
}

// ExitCode returns the exit code for err.
func ExitCode(err error) int {
	var coded codedError
	var wrong *pattern.Mismatch
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &coded):
		return coded.code
	case errors.As(err, &wrong): // whatever else went wrong
		return ExitFailed
	case is(err, sock.ErrPath, vmm.ErrSize):
		return ExitUsage
	case is(err, share.ErrRefused) && is(err, share.ErrTimeout):
		return ExitPeer
	case is(err, share.ErrVerdict, sock.ErrNotAdmitted, share.ErrRefused):
		return ExitFailed
	case is(err, context.DeadlineExceeded, share.ErrTimeout, share.ErrNoConsumer, share.ErrNoVerdict, share.ErrStillOpen, sock.ErrPeerLost),
		serve.IsEnded(err):
		return ExitPeer
	case is(err, vmm.ErrDescriptor, vmm.ErrKind):
		return ExitFailed
	case is(err, syscall.EMFILE, syscall.ENFILE, cu.ErrOperatingSystem):
		return ExitMachine
	case is(err, cu.ErrNotSupported, cu.ErrNotPermitted, cu.ErrNoDevice, cu.ErrSymbolMissing):
		return ExitMachine
	}
	return ExitFailed
}

func is(err error, targets ...error) bool {
	for _, t := range targets {
		if errors.Is(err, t) {
			return true
		}
	}
	return false
}

// Advice returns what the user can do about err; the packages below do not know the
// commands and their flags.
func Advice(err error) string {
	switch {
	case is(err, sock.ErrNoListener):
		return "start the producer with the same --socket, or wait longer with --timeout"
	case is(err, share.ErrDenied):
		return fmt.Sprintf("this is uid %d gid %d: start the producer with --allow-uid or --allow-gid", os.Geteuid(), os.Getegid())
	case is(err, share.ErrHandle):
		return "start the producer with --handle legacy: this side can take nothing else"
	case is(err, sock.ErrNotAdmitted):
		return "to take its offers, use --allow-uid or --allow-gid"
	case is(err, syscall.EMFILE):
		return "the limit of open files is too low; raise it with ulimit -n"
	case is(err, vmm.ErrDevice):
		return "leave --device out to use the device that the memory is on"
	case is(err, cu.ErrOutOfMemory) && is(err, context.DeadlineExceeded):
		return "wait longer with --wait"
	case is(err, share.ErrNoConsumer):
		return "start a consumer with the same --socket, or wait longer with --timeout"
	case is(err, share.ErrTimeout) && !is(err, share.ErrRefused):
		return "wait longer with --timeout"
	}
	return ""
}

// OneLine returns an error's text with its lines joined, as it can be printed.
func OneLine(err error) string {
	var b strings.Builder
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimSpace(line)
		switch {
		case b.Len() == 0 || line == "":
		case strings.HasSuffix(b.String(), ":"):
			b.WriteString(" ")
		default:
			b.WriteString("; ")
		}
		b.WriteString(line)
	}
	return plain.Text(b.String())
}
