package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// The exit codes of DESIGN.md, for every error there is a name for.
func TestExitCodes(t *testing.T) {
	driver := func(r cu.Result) error { return &cu.Error{Op: "cuX", Result: r} }
	for _, c := range []struct {
		code int
		errs []error
	}{
		{ExitOK, []error{nil}},
		{ExitFailed, []error{
			errors.New("any other"), os.ErrNotExist, cu.ErrClosed,
			share.ErrVerdict, &serve.VerdictError{Text: "wrong data"}, share.ErrRefused, share.ErrBusy, &serve.RefusalError{Code: wire.RefusedBusy},
			share.ErrProtocol, wire.ErrMalformed, wire.ErrVersion, share.ErrNameTaken, share.ErrClosed,
			sock.ErrNoListener, sock.ErrNoDirectory, sock.ErrInsecure, sock.ErrNotSocket, sock.ErrListening, sock.ErrNotAdmitted, &sock.NotAdmittedError{},
			vmm.ErrDescriptor, &vmm.DescriptorError{}, vmm.ErrKind, vmm.ErrDevice, vmm.ErrCapacity, vmm.ErrMapped, vmm.ErrOccupied, vmm.ErrNotShareable,
			&cu.NoDeviceError{Want: "7"}, driver(cu.ErrOutOfMemory), driver(cu.ErrInvalidValue), driver(cu.ErrUnknown), driver(cu.ErrIllegalAddress),
		}},
		{ExitUsage, []error{Usagef("unknown flag"), sock.ErrPath, vmm.ErrSize, fmt.Errorf("wrapped: %w", Usagef("x"))}},
		{ExitMachine, []error{
			Machinef("no such feature"), driver(cu.ErrNotSupported), driver(cu.ErrNotPermitted), driver(cu.ErrNoDevice),
			cu.ErrSymbolMissing, &cu.SymbolError{Symbol: "cuMemCreate"},
		}},
		{ExitPeer, []error{
			context.DeadlineExceeded, errors.Join(context.DeadlineExceeded, driver(cu.ErrOutOfMemory)), share.ErrTimeout, share.ErrNoConsumer, share.ErrNoVerdict, share.ErrWithdrawn, share.ErrSuperseded, share.ErrRevoked, share.ErrRestarting, share.ErrStillOpen, sock.ErrPeerLost,
			&serve.RefusalError{Code: wire.RefusedTimeout},
		}},
	} {
		for _, err := range c.errs {
			require.Equal(t, c.code, ExitCode(err), "%v", err)
			if err != nil {
				require.Equal(t, c.code, ExitCode(fmt.Errorf("wrapped: %w", err)), "%v", err)
				require.Equal(t, c.code, ExitCode(&sock.Error{Op: "x", Err: err}), "%v", err)
			}
		}
	}
}

// The error that says most decides the code of several.
func TestExitCodeOfSeveralErrors(t *testing.T) {
	verdict := &serve.VerdictError{Text: "wrong data"}
	for _, c := range []struct {
		code int
		errs []error
	}{
		{ExitFailed, []error{sock.ErrPeerLost, verdict}},
		{ExitFailed, []error{&pattern.Mismatch{Wrong: 1}, sock.ErrPeerLost}},
		{ExitFailed, []error{share.ErrTimeout, &pattern.Mismatch{Wrong: 1}}},
		{ExitFailed, []error{verdict, share.ErrTimeout}},
		{ExitPeer, []error{share.ErrNoVerdict, sock.ErrPeerLost}},
		{ExitPeer, []error{&cu.Error{Op: "cuMemUnmap", Result: cu.ErrNotSupported}, sock.ErrPeerLost}},
		{ExitUsage, []error{errors.New("x"), Usagef("y")}},
	} {
		require.Equal(t, c.code, ExitCode(errors.Join(c.errs...)), "%v", c.errs)
	}
}

// Rows of the seed's troubleshooting table.
func TestAdviceSaysWhatToDo(t *testing.T) {
	for err, want := range map[error]string{
		sock.ErrNoListener:  "start the producer with the same --socket, or wait longer with --timeout",
		vmm.ErrDevice:       "-device",
		share.ErrNoConsumer: "start a consumer",
		share.ErrTimeout:    "-timeout",
		sock.ErrNotAdmitted: "-allow-uid",
		share.ErrHandle:     "-handle legacy",

		&serve.RefusalError{Code: wire.RefusedPolicy}: fmt.Sprintf("this is uid %d", os.Geteuid()),
	} {
		require.Contains(t, Advice(fmt.Errorf("x: %w", err)), want)
	}
	require.Contains(t, Advice(errors.Join(cu.ErrOutOfMemory, context.DeadlineExceeded)), "-wait")
	require.Empty(t, Advice(errors.New("any other")))
	require.Empty(t, Advice(cu.ErrOutOfMemory))
}

func TestErrorsKeepTheirCause(t *testing.T) {
	require.ErrorIs(t, Machinef("x: %w", cu.ErrNoDevice), cu.ErrNoDevice)
	require.ErrorIs(t, Usagef("x: %w", os.ErrInvalid), os.ErrInvalid)
	require.Equal(t, "x: 5", Usagef("x: %d", 5).Error())
}

func TestOneLine(t *testing.T) {
	for text, want := range map[string]string{
		"one": "one", "a\nb": "a; b", "Tried:\n  x: no\n  y: no": "Tried: x: no; y: no", "a\n\nb\n": "a; b", "": "", "\n a": "a",
	} {
		require.Equal(t, want, OneLine(errors.New(text)), "%q", text)
	}
	require.Equal(t, "a; b", OneLine(errors.Join(errors.New("a"), errors.New("b"))))
}
