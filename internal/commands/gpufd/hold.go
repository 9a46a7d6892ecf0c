package gpufd

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// hold waits with the memory mapped. If the keeper dies, it tells the next keeper.
func (p *program) hold(ctx context.Context, parts []*keeper.Attached, long time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	var resumed sync.WaitGroup
	for _, part := range parts {
		resumed.Go(func() { stay(ctx, part) })
	}
	d := parts[0].Data
	if p.json {
		p.object(app.Fields{"event": "holding", "name": d.Name, "version": d.Version, "pid": os.Getpid()})
	}
	p.say("Holding %s, version %d, for %s", d.Name, d.Version, long)
	<-ctx.Done()
	resumed.Wait()
}

// resumePause is how long stay waits before it asks again.
const resumePause = 50 * time.Millisecond

// stay resumes a part's lease whenever the keeper is lost or restarting, until ctx is done. It does not
// resume a lease that ended for another reason; the memory stays mapped.
func stay(ctx context.Context, part *keeper.Attached) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-part.Done():
		}
		if err := part.Err(); !errors.Is(err, share.ErrRestarting) && !errors.Is(err, sock.ErrPeerLost) {
			return
		}
		if !resume(ctx, part) {
			return
		}
	}
}

// resume takes the lease again as soon as there is a keeper, and reports whether it did.
func resume(ctx context.Context, part *keeper.Attached) bool {
	for {
		next, err := part.Resume(ctx)
		if err == nil {
			part.Attachment = next
			return true
		}
		if errors.Is(err, share.ErrStale) {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(resumePause):
		}
	}
}
