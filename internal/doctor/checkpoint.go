package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
)

// firstCheckpoints is the CUDA version that brought checkpoints of processes.
const firstCheckpoints = 12080

// checkpoint makes the owner checkpoint and restore a process that has memory of its own.
func (v *run) checkpoint(ctx context.Context) []Row {
	const id = "checkpoint"
	if v.revive() {
		v.openBoth(ctx)
	}
	says := v.owner.says
	switch {
	case len(says.Devices) == 0:
		return nil // another row says so
	case says.Version < firstCheckpoints:
		return []Row{row(id, Unknown, "", "not tried: it takes a driver of CUDA %s, and this is %s", sys.Version(firstCheckpoints), says.Driver)}
	}
	_, _, f := v.owner.ask(ctx, request{Do: "state"})
	if f != nil && says.Kind == cu.Soft && f.Result == cu.ErrNotSupported {
		return []Row{row(id, Unknown, "", "the software driver has no checkpoints")}
	}
	if f == nil {
		sleeper := v.start("process that is checkpointed")
		defer sleeper.close()
		var where string
		if where, f = v.sleep(ctx, sleeper); where != "" {
			return []Row{row(id, Unknown, "", "not tried: %s", where)}
		}
		if f != nil {
			sleeper.giveUp(f) // its calls may wait for ever
		}
	}
	if f == nil {
		return []Row{row(id, OK, "", "a process was checkpointed and restored, and its 2 MiB were verified")}
	}
	if f.Mark == "" {
		f.Mark = id
	}
	return []Row{failed(id, Warn, f, facts{})}
}

// sleep gives the sleeper memory, has it checkpointed and restored, and verifies the memory. elsewhere says why another
// process might be checkpointed in its place, and nothing was.
func (v *run) sleep(ctx context.Context, sleeper *probe) (elsewhere string, f *fault) {
	if sleeper.open(ctx); sleeper.err != nil {
		return "", sleeper.err
	}
	for _, p := range []*probe{v.owner, sleeper} {
		if p.says.PID != p.cmd.Process.Pid {
			return fmt.Sprintf("the %s is in another PID namespace, as number %d", p.name, p.says.PID), nil
		}
	}
	r := request{Do: "own", Device: v.owner.says.Devices[0].UUID, Salt: newSalt()}
	if _, _, f = sleeper.ask(ctx, r); f == nil {
		_, _, f = v.owner.ask(ctx, request{Do: "checkpoint", PID: sleeper.says.PID})
	}
	if f == nil {
		r.Do = "verify"
		_, _, f = sleeper.ask(ctx, r)
	}
	return "", f
}

// lockLimit is how long a process may take to have its calls locked.
const lockLimit = 5 * time.Second

// state asks the driver for the state of this process.
func (c *child) state(request, []*os.File, *answer) error {
	if c.drv == nil {
		return errors.New("no driver is open")
	}
	_, err := c.drv.Process(os.Getpid()).State()
	return err
}

// own makes memory that this process alone has, with the pattern.
func (c *child) own(ctx *cu.Context, r request, _ *answer) error {
	m, err := ctx.Alloc(size)
	if err != nil {
		return err
	}
	c.keep(m.Close)
	c.have["memory"] = m
	return write(ctx, m.Ptr(), size, r.Salt)
}

// checkpoint checkpoints and restores a process.
func (c *child) checkpoint(r request, _ []*os.File, _ *answer) error {
	p := c.drv.Process(r.PID)
	err := p.Lock(lockLimit)
	if err != nil {
		return err
	}
	if err = p.Checkpoint(); err == nil {
		err = p.Restore()
	}
	return errors.Join(err, p.Unlock())
}
