package serve

import (
	"context"
	"fmt"
	"testing"

	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/stretchr/testify/require"
)

// The answers to another version, to what is not known and to garbage differ.
func TestRefusalsDiffer(t *testing.T) {
	for err, want := range map[error]wire.RefusalCode{
		wire.ErrVersion: wire.RefusedVersion, wire.ErrUnsupported: wire.RefusedUnsupported, wire.ErrMalformed: wire.RefusedRecord, ErrUnexpected: wire.RefusedRecord,
		ErrTimeout: wire.RefusedTimeout, ErrRate: wire.RefusedRate, sock.ErrTooManyFDs: wire.RefusedRecord,
	} {
		require.Equal(t, want, Refusal(fmt.Errorf("why: %w", err)).Code)
	}
}

// FAULTS 58: whom the offer could not be sent to is not told that it took too long.
func TestFault58_RefusalSaysWhoseFaultItIs(t *testing.T) {
	err := fmt.Errorf("%w: %w: %w", sock.ErrTooManyInFlight, context.DeadlineExceeded, ErrTimeout)
	require.Equal(t, wire.RefusedBusy, Refusal(err).Code)
	require.Contains(t, Refusal(err).Text, "in flight")
	require.Equal(t, wire.RefusedTimeout, Refusal(ErrTimeout).Code)
}
