package keeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
)

// ErrNewerVersion says that another version was committed before a writer could attach to its own.
var ErrNewerVersion = errors.New("keeper: another version was committed meanwhile")

// keep attaches to the parts that this writer has delivered, as a reader.
func (w *writer) keep(ctx context.Context, parts []Part, kept *Kept) (err error) {
	if err := w.committed(ctx, kept); err != nil {
		return fmt.Errorf("keeper: waiting for the other parts of %s: %w", w.put.Name, err)
	}
	defer func() {
		if err != nil {
			for _, a := range kept.Parts {
				err = errors.Join(err, a.Close())
			}
			kept.Parts = nil
		}
	}()
	info := api.Info{Name: w.put.Name, Version: kept.Version, Parts: make([]api.PartInfo, w.put.Parts)}
	for _, part := range parts {
		a, err := attachPart(ctx, part.Device.Driver(), w.client, info, part.Index, Want{})
		if err != nil {
			return w.outdated(ctx, kept.Version, err)
		}
		kept.Parts = append(kept.Parts, a)
		if a.Data.Version != kept.Version {
			return fmt.Errorf("%w: %s has version %d, and this writer's is %d", ErrNewerVersion, w.put.Name, a.Data.Version, kept.Version)
		}
	}
	return nil
}

// outdated returns err, with ErrNewerVersion if the name has another version now.
func (w *writer) outdated(ctx context.Context, version uint64, err error) error {
	if info, statErr := w.client.Stat(ctx, w.put.Name); statErr == nil && info.Version != version {
		return fmt.Errorf("%w: %w", ErrNewerVersion, err)
	}
	return err
}

// committedPause is how long a writer waits before it asks again whether the others have
// delivered.
const committedPause = 50 * time.Millisecond

// committed waits until the version of the transaction is committed.
func (w *writer) committed(ctx context.Context, kept *Kept) error {
	for kept.Version == 0 {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(committedPause):
		}
		a, err := w.client.conn().Query(ctx, protocol.Request{Op: protocol.OpDeliver, Ticket: w.bookings[0].Ticket})
		if err != nil {
			return err
		}
		kept.Version, kept.Missing = a.Version, a.Missing
	}
	return nil
}
