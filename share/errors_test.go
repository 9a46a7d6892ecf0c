package share

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/sock"
)

// The answers to another version, to what is not known and to garbage differ.
func TestRefusalsDiffer(t *testing.T) {
	for err, want := range map[error]RefusalCode{
		ErrVersion: RefusedVersion, ErrUnsupported: RefusedUnsupported, ErrWire: RefusedRecord, ErrProtocol: RefusedRecord,
		ErrTimeout: RefusedTimeout, ErrRate: RefusedRate, sock.ErrTooManyFDs: RefusedRecord,
	} {
		require.Equal(t, want, refusal(fmt.Errorf("why: %w", err)).Code)
	}
}

// FAULTS 58: whom the offer could not be sent to is not told that it took too long.
func TestFault58_RefusalSaysWhoseFaultItIs(t *testing.T) {
	err := fmt.Errorf("%w: %w: %w", sock.ErrTooManyInFlight, context.DeadlineExceeded, ErrTimeout)
	require.Equal(t, RefusedBusy, refusal(err).Code)
	require.Contains(t, refusal(err).Text, "in flight")
	require.Equal(t, RefusedTimeout, refusal(ErrTimeout).Code)
}

func TestErrorsSayWhoSaysSo(t *testing.T) {
	require.Equal(t, `refused by the peer (busy): come\x1b again`, (&RefusalError{RefusedBusy, "come\x1b again"}).Error())
	require.Equal(t, "refused by the peer (code 99): ", (&RefusalError{99, ""}).Error())
	require.Equal(t, "the consumer reports: very; bad", (&VerdictError{"very\nbad"}).Error())
	require.NotErrorIs(t, &RefusalError{}, ErrVerdict)
	require.NotErrorIs(t, &VerdictError{}, ErrRefused)
}
