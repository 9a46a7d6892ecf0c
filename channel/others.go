package channel

import (
	"context"
	"errors"
	"time"

	"github.com/gpufd/gpufd/cu"
)

// closeBesideOthers calls end, which closes memory of c that no stream uses on behalf of this channel any more, unless
// streams of others have work for longer than limit: Close of memory knows no channels, and would wait much longer.
func closeBesideOthers(c *cu.Context, limit time.Duration, end func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := c.Device().Driver().WaitToClose(ctx, "channel: its memory"); err != nil {
		return err
	}
	return end()
}

// closeLater calls end with pauses that grow, until it does not return ErrInUse or stop is closed. It returns what
// end returned last.
func closeLater(end func() error, stop <-chan struct{}) (err error) {
	for pause := sleepMax; ; pause = min(2*pause, closeLimit) {
		select {
		case <-stop:
			return err
		case <-time.After(pause):
		}
		if err = end(); !errors.Is(err, ErrInUse) {
			return err
		}
	}
}

// closeUnbegun calls end for what could not begin, so that its maker gets nothing to close. If streams of others have
// work, a goroutine calls end again until they have none.
func closeUnbegun(end func() error) error {
	err := end()
	if errors.Is(err, ErrInUse) {
		go func() { _ = closeLater(end, nil) }()
		return nil
	}
	return err
}
