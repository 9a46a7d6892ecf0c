package doctor

import (
	"context"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/sock"
)

func sysResult(r cu.Result) sys.CUresult { return sys.CUresult(r) }

// exchange makes the owner share something, the reader open it, and the owner verify what
// the reader has written. It returns the first failure.
func (v *run) exchange(ctx context.Context, dev cu.UUID, make, open string, verify bool) *fault {
	r := request{Do: make, Device: dev, Size: size, Salt: newSalt()}
	a, files, f := v.owner.ask(ctx, r)
	if f == nil {
		r.Do, r.Buffer, r.Fabric, r.Memory, r.Event = open, a.Buffer, a.Fabric, a.Memory, a.Event
		_, _, f = v.reader.ask(ctx, r, files...)
	}
	_ = sock.CloseFiles(files)
	if f == nil && verify {
		_, _, f = v.owner.ask(ctx, request{Do: "verify", Device: dev, Salt: r.Salt + 1})
	}
	return f
}

// contexts makes both make a context and keep it: a device in exclusive mode allows one.
func (v *run) contexts(ctx context.Context, dev cu.UUID) Row {
	for _, p := range []*probe{v.owner, v.reader} {
		if _, _, f := p.ask(ctx, request{Do: "context", Device: dev, Salt: newSalt()}); f != nil {
			return failed("context", Fail, f, facts{})
		}
	}
	return row("context", OK, "", "two processes have one at the same time, and copied memory there and back")
}

func (v *run) descriptors(ctx context.Context, dev cu.UUID) Row {
	if f := v.exchange(ctx, dev, "create", "import", true); f != nil {
		return failed("memory-fd", Fail, f, facts{})
	}
	return row("memory-fd", OK, "", "2 MiB were created, exported, imported by another process, mapped, written and verified on both sides")
}

func (v *run) legacyMemory(ctx context.Context, dev cu.UUID) Row {
	f := v.exchange(ctx, dev, "legacy", "open legacy", true)
	if f == nil {
		return row("legacy-memory", OK, "", "2 MiB were opened by another process, written and verified on both sides")
	}
	return failed("legacy-memory", legacyStatus(f), f, facts{sameShm: v.sameShm(ctx)})
}

func (v *run) legacyEvent(ctx context.Context, dev cu.UUID) Row {
	f := v.exchange(ctx, dev, "event", "open event", false)
	if f == nil {
		return row("legacy-event", OK, "", "another process opened an event, and saw it happen")
	}
	return failed("legacy-event", legacyStatus(f), f, facts{sameShm: v.sameShm(ctx)})
}

// legacyStatus is only a warning if the device says that it has no legacy IPC.
func legacyStatus(f *fault) Status {
	if f.Result == cu.ErrNotSupported {
		return Warn
	}
	return Fail
}

// sameShm reports whether both processes have the same /dev/shm.
func (v *run) sameShm(ctx context.Context) bool {
	a, _, f := v.owner.ask(ctx, request{Do: "shm"})
	b, _, g := v.reader.ask(ctx, request{Do: "shm"})
	return f == nil && g == nil && a.Seen == b.Seen
}

func (v *run) fabric(ctx context.Context, dev cu.UUID) Row {
	if f := v.exchange(ctx, dev, "fabric", "import fabric", true); f != nil {
		if f.Op == "cuMemCreate" && f.Mark == "" { // other memory could be made before
			f.Mark = "imex-channel"
		}
		return failed("imex-channel", Warn, f, facts{})
	}
	return row("imex-channel", OK, "", "2 MiB went to another process by a fabric handle")
}
