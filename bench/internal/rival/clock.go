package rival

import (
	"time"

	"golang.org/x/sys/unix"
)

// Go's clock and CLOCK_MONOTONIC differ by a constant.
var (
	base   = time.Now()
	baseNS = monotonic()
)

func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(err) // it has no way to fail
	}
	return t.Nano()
}

// Now is CLOCK_MONOTONIC in ns, which all processes of a machine share.
func Now() int64 { return At(time.Now()) }

// At is t on the clock of [Now].
func At(t time.Time) int64 { return baseNS + int64(t.Sub(base)) }
