package server

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/share"
)

// rounds is how often something is killed while a version is parked or unparked.
var rounds = flag.Int("rounds", 0, "how many processes TestFault99 kills; 0 is each step once")

// The steps at which a keeper kills itself while it parks or unparks, or makes the pool.
var (
	parkSteps   = []string{"park planned", "mover", "park copied", "parked"}
	unparkSteps = []string{"unpark planned", "mover", "unpark copied", "unpark held", "unparked"}
	poolSteps   = []string{"chunk made", "chunk held", "chunk kept"}
)

// A parkTrial parks and unparks a version of two parts, while processes are killed.
type parkTrial struct {
	t      *testing.T
	dev    *cu.Device
	socket string
	ctx    context.Context
	judge  *judge
	death  string // the file that says when movers die
}

const (
	parkedName = "model"
	poolChunks = 6
)

func newParkTrial(t *testing.T, socket string) *parkTrial {
	t.Helper()
	x := &parkTrial{t: t, dev: cutest.Device(t), socket: socket, death: filepath.Join(filepath.Dir(socket), "death")}
	requireHostMemory(t, x.dev)
	var cancel context.CancelFunc
	x.ctx, cancel = context.WithTimeout(t.Context(), 10*time.Minute)
	t.Cleanup(cancel)
	x.judge = ok(newJudge(x.dev))(t)
	t.Cleanup(func() { require.NoError(t, x.judge.close()) })
	return x
}

// put keeps the version: 1.5 chunks of the pool, and one.
func (x *parkTrial) put(c *client) {
	x.t.Helper()
	require.NoError(x.t, errOf(c.Put(soon(x.t), keeper.Put{Name: parkedName, Parts: 2},
		keeper.Part{Index: 0, Device: x.dev, Size: 3 * granule / 2, Write: writeAll(fillOf(1, 0))},
		keeper.Part{Index: 1, Device: x.dev, Size: granule, Write: writeAll(fillOf(1, 1))})))
}

// verify requires that readers get all bytes, and that nothing else is kept.
func (x *parkTrial) verify(c *client) {
	x.t.Helper()
	for _, a := range attach(x.t, c, x.dev, parkedName) {
		require.Equal(x.t, uint64(1), a.Data.Version)
		require.NoError(x.t, x.judge.check(a.Attachment, a.Data, fillOf(1, a.Data.Part)))
		require.NoError(x.t, a.Close())
	}
	p := ok(c.Status(soon(x.t)))(x.t).Pool
	require.Equal(x.t, uint64(poolChunks*granule), p.Bytes)
	require.Equal(x.t, p.Bytes, p.Free)
}

// insist asks until the keeper, this one or the next, has done it.
func (x *parkTrial) insist(c *client, what func(context.Context, string, uint64) (api.Moved, error)) {
	x.t.Helper()
	var last error
	for ctx := soon(x.t); ; {
		_, err := what(ctx, parkedName, 0)
		if err == nil {
			return
		}
		require.NoError(x.t, ctx.Err(), "%v; before: %v", err, last)
		last = err
		if code := codeOf(err); code != "" && !slices.Contains([]string{"failed", "conflict", "store", "store-lost", "no-room"}, code) {
			require.NoError(x.t, err)
		}
		time.Sleep(waitStep)
	}
}

func codeOf(err error) string {
	var no *api.Error
	if errors.As(err, &no) {
		return string(no.Code)
	}
	return ""
}

// keeper starts one in a process of its own.
func (x *parkTrial) keeper(step string, pool int) *exec.Cmd {
	x.t.Helper()
	return ok(mortal(x.ctx, x.socket, step, poolEnv+"="+strconv.Itoa(pool*granule), moverEnv+"="+x.death))(x.t)
}

// killWhenPooled kills a keeper once its pool is as large as it was to be, unless that is over.
func (x *parkTrial) killWhenPooled(cmd *exec.Cmd, over chan struct{}) {
	for {
		if c, err := dial(x.ctx, x.socket); err == nil {
			st, err := c.Status(x.ctx)
			if _ = c.Close(); err == nil && st.PID == cmd.Process.Pid && st.Pool.Bytes >= st.Pool.Wanted {
				_ = cmd.Process.Kill()
				return
			}
		}
		select {
		case <-over:
			return
		case <-time.After(waitStep):
		}
	}
}

// life runs keepers until one has done what f asks for: one that dies at the step, and then one that lives. It returns
// with the last.
func (x *parkTrial) life(step string, f func(c *client)) {
	x.t.Helper()
	first := x.keeper(step, poolChunks)
	over := make(chan error, 1)
	done := make(chan struct{})
	go func() {
		err := first.Wait()
		last := x.keeper("", poolChunks) // also if the first was ended after all: it never came to the step
		<-done
		over <- errors.Join(ended(err), last.Process.Kill(), ended(last.Wait()))
	}()
	c := dialledSoon(x.t, x.socket)
	f(c)
	_ = first.Process.Kill()
	x.verify(c)
	close(done)
	require.NoError(x.t, <-over)
	require.NoError(x.t, c.Close())
}

// ended returns nil if a process was killed.
func ended(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ProcessState.Sys() != nil {
		return nil
	}
	return err
}

// dialledSoon is a client of a keeper that is starting.
func dialledSoon(t *testing.T, socket string) *client {
	t.Helper()
	for ctx := soon(t); ; {
		c, err := dial(ctx, socket)
		if err == nil {
			return c
		}
		require.NoError(t, ctx.Err(), "%v", err)
		time.Sleep(waitStep)
	}
}

// TestFault99_KilledWhileParking: keeper, mover, fd store and reader are killed, each at each step of parking, of
// unparking and of making the pool. All bytes are there afterwards, in memory of the host or of the device.
func TestFault99_KilledWhileParking(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	t.Run("keeper", func(t *testing.T) { killKeepers(t, random) })
	t.Run("mover", func(t *testing.T) { killMovers(t, random) })
	t.Run("store", killStores)
	t.Run("reader", killReaders)
}

// times returns how often something is killed.
func times(each int) int {
	if *rounds > 0 {
		return *rounds
	}
	return each
}

func killKeepers(t *testing.T, random *rand.Rand) {
	socket := newSocket(t)
	store := relayStore(t, socket)
	x := newParkTrial(t, socket)
	first := opened(t, options(socket))
	x.put(dialled(t, socket))
	require.NoError(t, first.Close())
	for i := range times(4) { // the pool is made in pieces
		step := fmt.Sprintf("%s:%d", poolSteps[i%len(poolSteps)], 1+random.IntN(poolChunks/2))
		cmd := x.keeper(step, min(poolChunks, 1+random.IntN(2*poolChunks)))
		over := make(chan struct{})
		go x.killWhenPooled(cmd, over) // it may have had enough before the step
		require.NoError(t, ended(cmd.Wait()))
		close(over)
	}
	both := slices.Concat(parkSteps, unparkSteps)
	steps := slices.Concat(both, both, storeSteps)
	for i := range times(len(steps)) {
		step := steps[i%len(steps)] + ":1"
		if i%len(steps) >= len(both) {
			step = fmt.Sprintf("%s:%d", steps[i%len(steps)], 1+random.IntN(3))
		}
		x.life(step, func(c *client) {
			if slices.Contains(storeSteps, steps[i%len(steps)]) {
				store.kill(step)
			}
			x.insist(c, c.Park)
			x.insist(c, c.Unpark)
			x.insist(c, c.Park)
		})
		store.call(nil)
	}
}

// moverCalls is more calls than a mover makes of the driver.
const moverCalls = 400

func killMovers(t *testing.T, random *rand.Rand) {
	x := newParkTrial(t, newSocket(t))
	cmd := x.keeper("", poolChunks)
	c := dialledSoon(t, x.socket)
	defer c.Close()
	awaitPool(t, c)
	x.put(c)
	died := 0
	for range times(20) {
		for _, what := range []func(context.Context, string, uint64) (api.Moved, error){c.Park, c.Unpark} {
			require.NoError(t, os.WriteFile(x.death, fmt.Append(nil, 1+random.IntN(moverCalls)), 0o600))
			if _, err := what(soon(t), parkedName, 0); err != nil {
				require.ErrorContains(t, err, "signal: killed")
				died++
			}
			require.NoError(t, os.Remove(x.death))
			x.insist(c, what)
		}
		x.verify(c)
	}
	require.Positive(t, died)
	t.Logf("%d movers were killed", died)
	require.NoError(t, cmd.Process.Kill())
	require.NoError(t, ended(cmd.Wait()))
}

// A hook is called at each step of a keeper in this process, while it is set.
type hook struct {
	atomic.Pointer[func(step string)]
}

func (h *hook) call(step string) {
	if f := h.Load(); f != nil {
		(*f)(step)
	}
}

// hookSteps returns the hook of keepers that the test opens from now on.
func hookSteps(t *testing.T) *hook {
	h, before := &hook{}, testHookStep
	t.Cleanup(func() { testHookStep = before }) // the keepers have ended by then
	testHookStep = h.call
	return h
}

// hooked is a keeper in this process, with a pool and the trial's version.
func hooked(t *testing.T) (*parkTrial, *Server, *client, *hook) {
	t.Helper()
	x, h := newParkTrial(t, newSocket(t)), hookSteps(t)
	opts := options(x.socket)
	opts.Pool = poolChunks * granule
	s := opened(t, opts)
	c := dialled(t, x.socket)
	awaitPool(t, c)
	x.put(c)
	return x, s, c, h
}

// once sets a hook that calls f the first time that a step comes. done reports whether it has come.
func (h *hook) once(step string, f func()) (done func() bool) {
	var came atomic.Bool
	g := func(now string) {
		if now == step && came.CompareAndSwap(false, true) {
			f()
		}
	}
	h.Store(&g)
	return came.Load
}

func killStores(t *testing.T) {
	x, s, c, h := hooked(t)
	steps := slices.Concat(parkSteps, unparkSteps)
	for i := range times(len(steps)) {
		came := h.once(steps[i%len(steps)], func() { _ = unix.Kill(s.vault.pid(), unix.SIGKILL) })
		x.insist(c, c.Park)
		x.insist(c, c.Unpark)
		require.True(t, came(), steps[i%len(steps)])
		x.verify(c)
	}
}

func init() { children["parked reader"] = parkedReader }

// parkedReader attaches, and is killed while it does.
func parkedReader() error {
	cutest.ExpectLeaks()
	drv, err := cutest.Open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		a, err := share.Attach(ctx, os.Getenv(socketEnv), keeper.OfferName(parkedName, 0, 2), drv.Devices()[0], nil)
		if err != nil {
			return err
		}
		if err := a.Close(); err != nil {
			return err
		}
	}
}

func killReaders(t *testing.T) {
	x, _, c, h := hooked(t)
	steps := append(slices.Clip(unparkSteps), "attach", "lease")
	for i := range times(len(steps)) {
		x.insist(c, c.Park)
		cmd := cutest.Child(x.ctx, "parked reader", socketEnv+"="+x.socket)
		started := make(chan struct{})
		came := h.once(steps[i%len(steps)], func() {
			<-started
			_ = cmd.Process.Kill()
		})
		require.NoError(t, cmd.Start())
		close(started)
		require.NoError(t, ended(cmd.Wait()))
		require.True(t, came(), steps[i%len(steps)])
		x.verify(c)
	}
}
