package producer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// A watcher prints what happens to the consumers and remembers their failures.
type watcher struct {
	app     *app.App
	legacy  bool
	refused refusals

	mu       sync.Mutex
	over     func() // ends the wait for consumers
	leases   int    // those that have not ended
	verified int
	failed   int
	worst    error // the one with the lowest exit code
}

func newWatcher(app *app.App, legacy bool) *watcher {
	return &watcher{app: app, legacy: legacy, refused: refusals{app: app, after: time.AfterFunc}, over: func() {}}
}

// serving says that the producer waits for consumers, until served is called.
func (w *watcher) serving() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = w.app.Waiting()
}

// served ends the wait and prints what is left.
func (w *watcher) served() {
	w.refused.close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over()
}

// see handles one event. Several may come at once.
func (w *watcher) see(e share.Event) {
	who := app.Fields{"consumer": e.Lease, "uid": e.Peer.UID, "pid": e.Peer.PID, "us": float64(e.Since.Nanoseconds()) / 1e3}
	switch e.Kind {
	case share.Connected:
		w.connected() // before it is sent anything
		w.app.Say("connected", who, "Consumer connected")
		w.app.Say("peer", who, "  consumer %d is %s", e.Lease, e.Peer)
	case share.Sent:
		what := "FD"
		if w.legacy {
			what = "IPC handle"
		}
		w.app.Say("sent", who, "Sent %s and size metadata to consumer", what)
	case share.Mapped:
		w.app.Say("mapped", who, "  consumer %d has mapped the memory (%s after connecting)", e.Lease, e.Since)
	case share.Detached:
		w.app.Say("detached", who, "  consumer %d has unmapped the memory, and keeps its lease", e.Lease)
	case share.Progress:
		w.app.Output.Progress(fmt.Sprintf("consumer %d verifying", e.Lease), e.Done, e.Total)
	case share.Verdict:
		w.verdict(e, who)
	case share.Ended:
		w.ended(e, who)
	}
}

func (w *watcher) verdict(e share.Event, who app.Fields) {
	if e.Err != nil {
		who["error"] = e.Err.Error()
		w.app.Say("verdict", who, "Consumer reported a failure: %v", e.Err)
		return
	}
	w.app.Say("verdict", who, "Consumer verified data successfully!")
}

func (w *watcher) connected() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leases++
}

// holders is how many consumers may have the memory open.
func (w *watcher) holders() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leases
}

func (w *watcher) ended(e share.Event, who app.Fields) {
	if lost := (*sock.LostError)(nil); errors.As(e.Err, &lost) {
		who["died"] = lost.Died() // before the error says what is known
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.leases--
	if e.Err == nil {
		w.verified++
		return
	}
	if serve.IsEnded(e.Err) || errors.Is(e.Err, app.ErrInterrupted) {
		return // this program, or a signal, ended it
	}
	w.failed++
	err := fmt.Errorf("consumer %d (%s): %w", e.Lease, e.Peer, e.Err)
	if w.worst == nil || cli.ExitCode(err) < cli.ExitCode(w.worst) {
		w.worst = err
	}
	if !errors.Is(e.Err, share.ErrVerdict) {
		who["error"] = e.Err.Error()
		w.app.Say("lost", who, "Lost consumer %d: %v", e.Lease, e.Err)
	}
}

// outcome is how many consumers verified the data.
func (w *watcher) outcome() app.Fields {
	w.mu.Lock()
	defer w.mu.Unlock()
	return app.Fields{"verified": w.verified, "failed": w.failed}
}

func (w *watcher) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failed > 1 {
		return fmt.Errorf("%d consumers failed, among them %w", w.failed, w.worst)
	}
	return w.worst
}
