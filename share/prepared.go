package share

import (
	"context"

	"github.com/gpufd/gpufd/internal/serve"
)

// A Prepared is an offer whose data is not there yet, with all work done that can be done
// before. The caller owns it and ends it with Offer or Close. It holds no descriptors of
// its own. It is safe for concurrent use. The zero Prepared is a closed one.
type Prepared serve.Prepared

func (p *Prepared) prepared() *serve.Prepared { return (*serve.Prepared)(p) }

// Offer is [Server.Offer] for prepared memory. It waits for work on the memory, tells the
// consumers that have mapped it, and serves them and others until ctx is done or an option
// ends it. A second call, and a call after Close, fails with [ErrClosed].
func (p *Prepared) Offer(ctx context.Context) error { return p.prepared().Offer(ctx) }

// Close gives up an offer that was not made, and tells the consumers that wait for its data
// ([ErrRevoked]). It may be called again, on nil, and after Offer, whose offer it does not
// end. It waits for functions of [OnEvent], which must not call it. The only errors are
// a [*StillOpenError] and a [*FenceError].
func (p *Prepared) Close() error { return p.prepared().Close() }
