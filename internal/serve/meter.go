package serve

import (
	"context"
	"time"
)

// A meter bounds the records per second; a burst may hold one second's worth. One
// goroutine uses it at a time. A nil meter bounds nothing.
type meter struct {
	rate int
	paid time.Time // each record pays for its part of a second, from here on
}

// newMeter returns nil for a rate that is no bound.
func newMeter(rate int) *meter {
	if rate <= 0 {
		return nil
	}
	return &meter{rate: rate}
}

// allow counts a record that comes now, and reports whether it is within the rate.
func (m *meter) allow(now time.Time) bool {
	if m == nil {
		return true
	}
	if m.paid.Before(now) {
		m.paid = now
	}
	m.paid = m.paid.Add(time.Second / time.Duration(m.rate))
	return m.paid.Sub(now) <= time.Second
}

// wait returns when the next record is allowed, or ctx is done.
func (m *meter) wait(ctx context.Context) error {
	if m == nil {
		return ctx.Err()
	}
	timer := time.NewTimer(time.Until(m.paid.Add(time.Second/time.Duration(m.rate) - time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
