package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// The environment of a keeper in a process of its own.
const (
	socketEnv = testenv.Prefix + "KEEPER"
	stepEnv   = testenv.Prefix + "STEP"  // the step at which it dies, and at which time
	poolEnv   = testenv.Prefix + "POOL"  // its size
	laterEnv  = testenv.Prefix + "LATER" // if not empty, steps count from SIGUSR1 on
)

func init() { children["keeper"] = mortalKeeper }

// mortalKeeper keeps until it is killed, or kills itself at a step.
func mortalKeeper() error {
	cutest.ExpectLeaks()
	testHookStep = mortalAt(os.Getenv(stepEnv))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	opts := options(os.Getenv(socketEnv))
	opts.Log = func(line string) { fmt.Fprintln(os.Stderr, "keeper:", line) }
	if pool := os.Getenv(poolEnv); pool != "" {
		opts.Pool = testenv.Got(strconv.ParseUint(pool, 10, 64))
		opts.Grace = 100 * time.Millisecond // readers whose goodbye was not recorded are in the way until then
	}
	s, err := openNext(ctx, opts)
	if err != nil {
		return err
	}
	<-s.Done()
	return errors.Join(s.Err(), s.Close())
}

// mortalAt returns a function that kills this process when it is called for the step in where ("swap:3": for the third time).
func mortalAt(where string) func(step string) {
	step, count, _ := strings.Cut(where, ":")
	left := new(atomic.Int64)
	if n, err := strconv.ParseInt(count, 10, 64); err == nil {
		left.Store(n)
	}
	armed := new(atomic.Bool)
	if os.Getenv(laterEnv) == "" {
		armed.Store(true)
	} else {
		told := make(chan os.Signal, 1)
		signal.Notify(told, syscall.SIGUSR1)
		go func() {
			<-told
			armed.Store(true)
		}()
	}
	return func(now string) {
		if now == step && armed.Load() && left.Add(-1) == 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	}
}

// mortal starts such a keeper.
func mortal(ctx context.Context, socket, step string, env ...string) (*exec.Cmd, error) {
	cmd := cutest.Child(ctx, "keeper", append(env, socketEnv+"="+socket, stepEnv+"="+step)...)
	cmd.Stderr = os.Stderr
	return cmd, cmd.Start()
}

// storeSteps are the steps of a commit, and of a start, at which the relay before the store kills a keeper.
var storeSteps = []string{"hold", "held", "swap", "swapped", "drop", "dropped"}

// steps are these, and those of attaching and resuming, at which a keeper kills itself.
var steps = append(slices.Clip(storeSteps),
	"attach", "lease", share.Connected.String(), share.Sent.String(), share.Mapped.String(), share.Ended.String())

// A trial runs writers and readers while keepers die.
type trial struct {
	t      *testing.T
	socket string
	store  *storeRelay
	devs   []*cu.Device
	judges map[cu.UUID]*judge
	ctx    context.Context
	stop   context.CancelFunc
	work   sync.WaitGroup

	mu    sync.Mutex
	acked map[string]uint64 // the last version of a name that its writer knows

	commits, attaches, resumed, stamps atomic.Int64
}

func newTrial(t *testing.T, socket string, devs []*cu.Device, longest time.Duration) *trial {
	x := &trial{t: t, socket: socket, devs: devs, judges: map[cu.UUID]*judge{}, acked: map[string]uint64{}}
	x.ctx, x.stop = context.WithTimeout(context.Background(), longest)
	t.Cleanup(x.stop)
	for _, dev := range devs {
		if x.judges[dev.UUID()] != nil {
			continue
		}
		j := ok(newJudge(dev))(t)
		t.Cleanup(func() { require.NoError(t, j.close()) })
		x.judges[dev.UUID()] = j
	}
	require.NoError(t, opened(t, options(x.socket)).Close()) // from now on there are sockets to wait at
	return x
}

func (x *trial) known(name string) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.acked[name]
}

// goOn calls f until the trial is over; an error other than that of its end fails it.
func (x *trial) goOn(what string, f func() error) {
	x.work.Go(func() {
		for x.ctx.Err() == nil {
			if err := f(); err != nil && x.ctx.Err() == nil {
				x.t.Errorf("%s: %v", what, err)
				x.stop()
			}
		}
	})
}

// write commits a version of one part for each device of the trial. All bytes of a part are
// of the version's stamp, and the part's index.
func (x *trial) write(name string) error {
	c, err := dial(x.ctx, x.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	stamp := x.stamps.Add(1)
	var parts []keeper.Part
	for i, dev := range x.devs {
		parts = append(parts, part(i, dev, fillOf(stamp, i)))
	}
	k, err := c.Put(x.ctx, keeper.Put{Name: name, Parts: len(parts), Labels: map[string]string{"stamp": strconv.FormatInt(stamp, 10)}}, parts...)
	if err != nil {
		return err
	}
	x.commits.Add(1)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.acked[name] = max(x.acked[name], k.Version)
	return nil
}

func fillOf(stamp int64, part int) byte { return byte(stamp*8 + int64(part)) }

// verify returns an error unless version, digest and bytes of a part belong together, and the
// version is no older than what its writer knew before.
func (x *trial) verify(a *share.Attachment, d api.Data, known uint64) error {
	stamp, err := strconv.ParseInt(d.Labels["stamp"], 10, 64)
	if err != nil {
		return err
	}
	if d.Version < known {
		return fmt.Errorf("%s has version %d, and %d was committed before", d.Name, d.Version, known)
	}
	return x.judges[a.Device().UUID()].check(a, d, fillOf(stamp, d.Part))
}

// read takes all parts, and requires them to be of one version.
func (x *trial) read(name string) error {
	c, err := dial(x.ctx, x.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	known := x.known(name)
	all, err := keeper.Attach(x.ctx, x.devs[0].Driver(), c.Client, name, keeper.Want{})
	if err != nil {
		return x.mended(err)
	}
	for _, a := range all {
		if a.Data.Version != all[0].Data.Version || a.Data.Labels["stamp"] != all[0].Data.Labels["stamp"] {
			err = errors.Join(err, fmt.Errorf("a mixture: %v and %v", a.Data, all[0].Data))
		}
		err = errors.Join(err, x.verify(a.Attachment, a.Data, known))
	}
	for _, a := range all {
		err = errors.Join(err, a.Close())
	}
	x.attaches.Add(int64(len(all)))
	return err
}

// mended returns nil for an error that a keeper's death causes, and that passes.
func (x *trial) mended(err error) error {
	var no *api.Error
	switch {
	case errors.Is(err, sock.ErrPeerLost), errors.Is(err, share.ErrWithdrawn), errors.Is(err, sock.ErrNoListener),
		errors.As(err, &no) && no.Code == "not-found", errors.Is(err, share.ErrNotFound):
		return nil
	}
	return err
}

// hold attaches to a part, and resumes its lease as often as a keeper dies, without a new mapping.
func (x *trial) hold(name string) error {
	att, err := share.Attach(x.ctx, x.socket, keeper.OfferName(name, 0, len(x.devs)), x.devs[0], nil)
	if err != nil {
		return x.mended(err)
	}
	for err == nil {
		select {
		case <-att.Done():
		case <-x.ctx.Done():
			return att.Close()
		}
		var next *share.Attachment
		if next, err = att.Resume(x.ctx); err == nil {
			x.resumed.Add(1)
			att = next
			err = x.verify(att, mustData(att), 0)
		}
	}
	if errors.Is(err, share.ErrStale) || x.mended(err) == nil {
		err = nil
	}
	return errors.Join(err, att.Close())
}

func mustData(a *share.Attachment) (d api.Data) {
	if err := json.Unmarshal(a.Offer().Data, &d); err != nil {
		panic(err)
	}
	return d
}

// TestFault86_KeeperKilledAtEveryStep: keepers are killed at each step of committing,
// attaching, resuming and starting, while others write, attach and resume. What was
// acknowledged is there, and version, digest and bytes belong together. 300 keepers are
// killed, with 300 commits and 3,000 attaches between: a tenth with -short and on a GPU.
func TestFault86_KeeperKilledAtEveryStep(t *testing.T) {
	kills := soak(2*len(steps), 300)
	socket := newSocket(t)
	store := relayStore(t, socket)
	x := newTrial(t, socket, []*cu.Device{cutest.Device(t)}, 8*time.Minute)
	x.store = store
	for _, name := range []string{"a", "b"} {
		x.goOn("writing", func() error { return x.write(name) })
		x.goOn("reading", func() error { return x.read(name) })
		x.goOn("holding", func() error { return x.hold(name) })
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	killed := 0
	for killed < kills && x.ctx.Err() == nil {
		step := fmt.Sprintf("%s:%d", steps[killed%len(steps)], 1+random.IntN(6))
		require.ErrorContains(t, x.kill(step, int64(killed)), "signal: killed", step)
		killed++
	}
	last := ok(openNext(soon(t), options(x.socket)))(t)
	defer last.Close()
	t.Logf("%d kills, %d commits, %d attaches so far", killed, x.commits.Load(), x.attaches.Load())
	for x.ctx.Err() == nil && (x.commits.Load() < int64(kills) || x.attaches.Load() < int64(10*kills)) {
		time.Sleep(waitStep)
	}
	require.NoError(t, x.ctx.Err())
	x.stop()
	x.work.Wait()
	t.Logf("%d kills, %d commits, %d attaches, %d resumed", killed, x.commits.Load(), x.attaches.Load(), x.resumed.Load())
	require.Positive(t, x.resumed.Load())
	requireNothingLost(t, x, last)
}

// kill runs a keeper until it is killed at a step, and returns how it ended. There was a
// commit, and there were ten attaches, for each keeper that was killed before: if they are
// missing, it serves until they are made, and dies then.
func (x *trial) kill(step string, before int64) error {
	done := func() bool { return x.commits.Load() >= before && x.attaches.Load() >= 10*before }
	if name, _, _ := strings.Cut(step, ":"); slices.Contains(storeSteps, name) {
		cmd, err := mortal(x.ctx, x.socket, "")
		if err != nil {
			return err
		}
		for !done() && x.ctx.Err() == nil {
			time.Sleep(waitStep)
		}
		x.store.kill(step)
		return cmd.Wait()
	}
	if done() {
		cmd, err := mortal(x.ctx, x.socket, step)
		if err != nil {
			return err
		}
		return cmd.Wait()
	}
	cmd, err := mortal(x.ctx, x.socket, step, laterEnv+"=1")
	if err != nil {
		return err
	}
	for !done() && x.ctx.Err() == nil {
		time.Sleep(waitStep)
	}
	c, err := dial(x.ctx, x.socket) // a keeper that answers listens to signals
	if err == nil {
		_, err = c.Status(x.ctx)
		err = errors.Join(err, c.Close(), cmd.Process.Signal(syscall.SIGUSR1))
	}
	return errors.Join(err, cmd.Wait())
}

// requireNothingLost requires that the last version that is known of each name is there.
func requireNothingLost(t *testing.T, x *trial, s *Server) {
	t.Helper()
	c := dialled(t, s.opts.Socket)
	for name, version := range x.acked {
		for _, a := range attach(t, c, x.devs[0], name) {
			require.NoError(t, x.verify(a.Attachment, a.Data, version))
		}
	}
}

// soak is how many times something is done: many on the software driver, and few where that
// takes long.
func soak(few, many int) int {
	if testing.Short() || cutest.Emulated() || cutest.Kind() == cu.CUDA {
		return few
	}
	return many
}
