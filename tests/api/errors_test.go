package api

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/keeper/server"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A meaning that several packages have has one error: errors.Is matches it by the name of any of them.
func TestOneErrorForOneMeaning(t *testing.T) {
	for name, errs := range map[string][]error{
		"closed": {gpumem.ErrClosed, cu.ErrClosed, sock.ErrClosed, share.ErrClosed, channel.ErrClosed, server.ErrClosed},
		"in use": {gpumem.ErrInUse, vmm.ErrInUse, share.ErrInUse, channel.ErrInUse},
	} {
		for _, err := range errs {
			for _, target := range errs {
				require.True(t, errors.Is(fmt.Errorf("what failed: %w", err), target), name)
			}
		}
	}
	require.ErrorIs(t, sock.ErrHandedOver, share.ErrClosed)
	require.ErrorIs(t, (*cu.Stream)(nil).NotCaptured(), share.ErrClosed)
	require.ErrorIs(t, (*sock.Conn)(nil).TrySend([]byte("x")), cu.ErrClosed)
	require.NotErrorIs(t, gpumem.ErrClosed, gpumem.ErrInUse)
}

// Errors that mean something else match none of another package.
func TestOtherMeaningsHaveOtherErrors(t *testing.T) {
	require.NotErrorIs(t, sock.ErrListening, gpumem.ErrInUse)
	require.NotErrorIs(t, &sock.NotAdmittedError{}, share.ErrRefused)
	require.NotErrorIs(t, share.ErrRefused, sock.ErrNotAdmitted)
}
