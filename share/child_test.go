package share

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// pathEnv is a child's socket, doEnv what it is to do with it.
const (
	pathEnv = testenv.Prefix + "PATH"
	doEnv   = testenv.Prefix + "DO"
)

// A child is a process of the test's own.
type child struct {
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Scanner
}

// childLife bounds how long a child lives, which is mostly as long as its test.
const childLife = 5 * time.Minute

// start runs one of children; it prints lines, and goes on when its input ends.
func start(t testing.TB, name, path, do string) *child {
	t.Helper()
	limited, cancel := context.WithTimeout(context.Background(), childLife) // soon is too short for a long test's child
	t.Cleanup(cancel)
	return startCommand(t, cutest.Child(limited, name, pathEnv+"="+path, doEnv+"="+do))
}

func startCommand(t testing.TB, cmd *exec.Cmd) *child {
	t.Helper()
	cmd.Stderr = os.Stderr
	in := ok(cmd.StdinPipe())(t)
	out := ok(cmd.StdoutPipe())(t)
	require.NoError(t, cmd.Start())
	c := &child{cmd, in, bufio.NewScanner(out)}
	t.Cleanup(c.kill)
	return c
}

// says waits for the child to print that line.
func (c *child) says(t *testing.T, want string) {
	t.Helper()
	require.True(t, c.out.Scan(), "the child has ended")
	require.Equal(t, want, c.out.Text())
}

// end lets the child go on to its end.
func (c *child) end(t *testing.T) {
	t.Helper()
	require.NoError(t, c.in.Close())
	require.NoError(t, c.cmd.Wait())
}

// stop is SIGSTOP, and waits until no thread runs any more.
func (c *child) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(syscall.SIGSTOP))
	require.Eventually(t, func() bool {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", c.cmd.Process.Pid))
		return len(threads) > 0 && !slices.ContainsFunc(threads, func(name string) bool {
			stat, err := os.ReadFile(name)
			return err == nil && !strings.Contains(string(stat), ") T ")
		})
	}, 10*time.Second, time.Millisecond)
}

// kill is SIGKILL, and waits until the process is gone.
func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func childDevice(opts ...cu.Option) (*cu.Device, *cu.Context, error) {
	drv, err := cutest.Open(opts...)
	if err != nil {
		return nil, nil, err
	}
	dev, err := drv.Device(0)
	if err != nil {
		return nil, nil, err
	}
	ctx, err := dev.PrimaryContext()
	return dev, ctx, err
}

// serveUntilInputEnds listens where it is told and offers memory until then.
func serveUntilInputEnds(offer func(context.Context, *Server) error) error {
	srv, err := Listen(os.Getenv(pathEnv), nil)
	if err != nil {
		return err
	}
	served, stop := context.WithCancel(context.Background())
	go func() {
		untilInputEnds("listening")
		stop()
	}()
	return errors.Join(offer(served, srv), srv.Close())
}

// untilInputEnds prints a line and waits to be let go on.
func untilInputEnds(line string) {
	fmt.Println(line)
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// childConsumer attaches, checks what it reads, and reports.
func childConsumer() error {
	do := os.Getenv(doEnv)
	dev, ctx, err := childDevice(cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		r := next()
		if do == "stop when opened" && stepOf[call.Symbol()] == "open" {
			untilInputEnds("opened")
		}
		return r
	}))
	if err != nil {
		return err
	}
	att, err := attachAny(context.Background(), os.Getenv(pathEnv), "data", dev, AttachOptions{Access: cu.ReadWrite, OnReceived: func(OfferInfo, []*os.File) {
		if do == "stop when received" {
			untilInputEnds("received")
		}
	}})
	if err != nil {
		return errors.Join(err, ctx.Close())
	}
	if err := childReads(ctx, att); err != nil {
		return err
	}
	if do == "stop when mapped" {
		untilInputEnds("mapped")
	}
	if do == "stop when revoked" {
		fmt.Println("mapped")
		<-att.Done()
		if !serve.IsEnded(att.Err()) {
			return fmt.Errorf("it was not taken back: %w", att.Err())
		}
		untilInputEnds("revoked")
		return errors.Join(childReads(ctx, att), att.Close(), ctx.Close())
	}
	if err := cu.CopyToDevice(ctx, att.Ptr(), noise(att.Size(), 2)); err != nil {
		return err
	}
	if do == "report in use" {
		if err := childReportsInUse(ctx, att); err != nil {
			return err
		}
	}
	return errors.Join(att.Report(context.Background(), nil), att.Close(), ctx.Close())
}

// childReportsInUse reports a verdict on memory that a stream may still use.
func childReportsInUse(ctx *cu.Context, att *Attachment) error {
	release, err := busy(ctx)
	if err != nil {
		return err
	}
	brief, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := att.Report(brief, nil); !errors.Is(err, ErrInUse) || att.Err() != nil || att.Ptr() == 0 {
		return fmt.Errorf("reported what is in use: %w, %w, at %s", err, att.Err(), att.Ptr())
	}
	return release()
}

// busy keeps a stream of ctx busy until release is called.
func busy(ctx *cu.Context) (release func() error, err error) {
	s, err1 := ctx.NewStream()
	helper, err2 := ctx.NewStream()
	word, err3 := ctx.Alloc(4)
	if err := errors.Join(err1, err2, err3); err != nil {
		return nil, err
	}
	err = errors.Join(cu.Fill(ctx, word.Ptr(), uint32(0), 1), s.WaitValue32(word.Ptr(), 1, cu.WaitGEQ))
	return sync.OnceValue(func() error {
		return errors.Join(helper.WriteValue32(word.Ptr(), 1, cu.WriteDefault), s.Close(), helper.Close(), word.Close())
	}), err
}

// childReads says what is wrong with what a consumer reads.
func childReads(ctx *cu.Context, att *Attachment) error {
	got := make([]byte, att.Size())
	if err := cu.CopyToHost(ctx, got, att.Ptr()); err != nil {
		return err
	}
	if string(got) != string(noise(att.Size(), 1)) {
		return errors.New("the producer's bytes are not there")
	}
	return nil
}

// childProducer offers a buffer until its input ends.
func childProducer() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	size, err := strconv.ParseUint(os.Getenv(doEnv), 10, 64)
	if err != nil {
		return err
	}
	buf, err := vmm.New(dev, size)
	if err != nil {
		return err
	}
	if err := cu.CopyToDevice(ctx, buf.Ptr(), noise(size, 1)); err != nil {
		return err
	}
	offer := func(served context.Context, srv *Server) error {
		return offerFor(served, srv, "data", buf, cu.ReadWrite)
	}
	return errors.Join(serveUntilInputEnds(offer), buf.Close(), ctx.Close())
}

// FAULTS 2, 3, D10: a producer killed after the descriptors were sent, and
// after the memory was mapped. What is there stays there.
func TestFault2and3_ProducerKilled(t *testing.T) {
	for _, when := range []string{"received", "mapped"} {
		t.Run(when, func(t *testing.T) {
			dev, ctx := leavesNothing(t)
			path := socketPath(t)
			c := start(t, "producer", path, "3145728")
			c.says(t, "listening")
			att := ok(Attach(soon(t), path, "data", dev, &AttachOptions{OnReceived: func(OfferInfo, []*os.File) {
				if when == "received" {
					c.kill()
				}
			}}))(t)
			c.kill()
			require.ErrorIs(t, awaitDone(t, att), sock.ErrPeerLost)
			require.EqualValues(t, 3145728, att.Buffer().Size())
			requireNoise(t, ctx, att.Buffer(), 1)
			require.ErrorIs(t, att.Report(soon(t), nil), sock.ErrPeerLost)
			require.NoError(t, att.Close())

			require.ErrorIs(t, errOf(Attach(soon(t), path, "data", dev, nil)), sock.ErrNoListener)
			srv := ok(Listen(path, nil))(t) // FAULTS 48: what it left on disk is reclaimed
			require.NoError(t, srv.Close())
		})
	}
}
