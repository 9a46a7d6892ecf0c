package doctor

import (
	"context"
	"math/rand/v2"
	"os/exec"
	"slices"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/advice"
)

// A Config configures a run.
type Config struct {
	// Child returns a command that runs [RunChild]: that of the exporting process first, and then that
	// of the importing one. Its environment may be nil, for this process's own.
	Child   func() *exec.Cmd
	Open    func() (*cu.Driver, error) // opens the driver with which [With] shares with a socket
	Driver  string                     // auto, cuda or soft, for messages
	Socket  string                     // the default socket
	Named   string                     // the socket that GPUFD_SOCKET names, or ""
	Timeout time.Duration              // of each check
	As      string                     // the process to compare with, a number, or "" for this one
	UIDs    []uint32                   // other users to trust
	Attach  string                     // an offer to attach to, or "" for that of [Offer]
	Report  func(Row)                  // is called with each row as soon as it is known, or nil
}

// A run is one run of the checks.
type run struct {
	Config
	owner, reader *probe // two processes that share
	rows          []Row
	nobody        bool // this user's namespace does not map it
}

// Run checks this machine, container and user, and returns what it found. Each check may
// take c.Timeout; ctx ends the run.
func Run(ctx context.Context, c Config) []Row {
	v := &run{Config: c}
	defer v.end()
	v.timed(ctx, v.system)
	v.startBoth()
	v.timed(ctx, v.processes)
	v.openBoth(ctx)
	if ctx.Err() != nil {
		return v.rows
	}
	v.add(v.drivers()...)
	if v.owner.err != nil {
		return v.rows
	}
	v.add(v.libcuda()...)
	v.add(v.visible())
	for _, dev := range v.owner.says.Devices {
		if v.device(ctx, dev); ctx.Err() != nil {
			return v.rows
		}
	}
	v.timed(ctx, v.checkpoint)
	if ctx.Err() != nil {
		return v.rows
	}
	v.add(held(v.owner.says.Kind, v.pids())...)
	v.add(mappedMemory(v.owner.says.Kind, v.pids()))
	v.add(signs(v.owner.says)...)
	return v.rows
}

// add notes rows, and reports them.
func (v *run) add(rows ...Row) {
	for _, r := range rows {
		v.nobody = v.nobody || r.ID == "uid-map" && r.Status == Fail
		if v.nobody && r.Status == Fail && r.Cause == r.ID { // no directory is this user's
			device, peer := r.Device, r.Peer
			r = row(r.ID, Fail, "uid-map", "%s", r.Seen)
			r.Device, r.Peer = device, peer
		}
		v.rows = append(v.rows, r)
		if v.Report != nil {
			v.Report(r)
		}
	}
}

// timed runs checks within c.Timeout.
func (v *run) timed(whole context.Context, f func(context.Context) []Row) {
	ctx, cancel := context.WithTimeout(whole, v.Timeout)
	defer cancel()
	if rows := f(ctx); whole.Err() == nil { // else they say that they were interrupted
		v.add(rows...)
	}
}

// startBoth starts the two processes, which open no driver yet.
func (v *run) startBoth() {
	v.owner = v.start("exporting process")
	v.reader = v.start("importing process")
}

// openBoth makes the two processes open their drivers side by side: drivers take long to start.
func (v *run) openBoth(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, v.Timeout)
	defer cancel()
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		v.reader.open(ctx)
	}()
	v.owner.open(ctx)
	<-opened
}

func (v *run) end() {
	for _, p := range []*probe{v.reader, v.owner} {
		if p != nil {
			p.close()
		}
	}
}

// pids returns the processes of this run.
func (v *run) pids() (pids []int) {
	for _, p := range []*probe{v.reader, v.owner} {
		if p != nil && p.cmd != nil {
			pids = append(pids, p.cmd.Process.Pid)
		}
	}
	return pids
}

// failed returns the row of a check that failed with f.
func failed(id string, status Status, f *fault, facts facts) Row {
	cause := facts.cause(id, f)
	if cause == "timeout" {
		status = Fail
	}
	return row(id, status, cause, "%s", f.Text)
}

// facts tell between the causes that one error can have.
type facts struct {
	samePID   bool // in other PID namespaces
	sameShm   bool
	otherUser bool
}

// cause returns why a check failed, or "".
func (facts facts) cause(id string, f *fault) string {
	if f.Mark != "" {
		return f.Mark
	}
	if f.Result == 0 {
		return ""
	}
	causes := slices.DeleteFunc(advice.CausesOf(f.Op, sysResult(f.Result)), func(cause string) bool {
		switch cause {
		case "pid-equal":
			return !facts.samePID
		case "own-handle":
			return facts.samePID
		case "shm-common":
			return facts.sameShm
		case "event-owner", "uid-common":
			return !facts.otherUser
		}
		return false
	})
	if len(causes) == 0 {
		return ""
	}
	return causes[0]
}

// newSalt returns a salt for the bytes of one round, which memory does not hold by chance.
func newSalt() uint32 { return rand.Uint32()&^1 | 2 }

// device shares memory of a device between two processes, in all ways.
func (v *run) device(ctx context.Context, dev deviceInfo) {
	for _, check := range []func(context.Context, cu.UUID) Row{v.contexts, v.descriptors, v.legacyMemory, v.legacyEvent, v.fabric} {
		if v.revive() {
			v.openBoth(ctx)
		}
		v.timed(ctx, func(ctx context.Context) []Row {
			r := check(ctx, dev.UUID)
			r.Device = dev.UUID.String()
			v.drop(ctx)
			return []Row{r}
		})
	}
}

// revive starts both processes anew if one has died or was killed, and reports whether.
func (v *run) revive() bool {
	if v.owner.dead == nil && v.reader.dead == nil {
		return false
	}
	v.end()
	v.startBoth()
	return true
}

// drop makes both give back what they have, contexts included. One that cannot is replaced.
func (v *run) drop(ctx context.Context) {
	for _, p := range []*probe{v.reader, v.owner} {
		if _, _, f := p.ask(ctx, request{Do: "drop"}); f != nil {
			p.giveUp(f)
		}
	}
}
