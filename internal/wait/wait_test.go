package wait

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestErr(t *testing.T) {
	ctx, cancel := context.WithCancelCause(context.Background())
	require.NoError(t, Err(ctx))
	why := errors.New("why")
	cancel(why)
	require.ErrorIs(t, Err(ctx), context.Canceled)
	require.ErrorIs(t, Err(ctx), why)
	require.EqualError(t, Err(ctx), "context canceled: why")

	late, stop := context.WithDeadline(context.Background(), time.Unix(1, 0))
	defer stop()
	require.Equal(t, context.DeadlineExceeded, Err(late), "said once where there is no other cause")
}
