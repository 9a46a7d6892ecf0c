package plain_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/plain"
)

func TestContextErr(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	require.NoError(t, plain.ContextErr(ctx))
	why := errors.New("why")
	cancel(why)
	require.ErrorIs(t, plain.ContextErr(ctx), context.Canceled)
	require.ErrorIs(t, plain.ContextErr(ctx), why)
	require.EqualError(t, plain.ContextErr(ctx), "context canceled: why")

	late, stop := context.WithDeadline(context.Background(), time.Unix(1, 0))
	defer stop()
	require.Equal(t, context.DeadlineExceeded, plain.ContextErr(late), "said once where there is no other cause")
}
