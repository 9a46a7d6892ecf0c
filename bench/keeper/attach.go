package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/server"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

const (
	name   = "bench"
	attach = "share.Attach"
	bare   = "C, bare calls"
)

// kept are the samples of what is measured with a keeper.
type kept struct {
	attaches, restarts samples
}

// withKeeper calls f with a keeper of its own.
func withKeeper(s settings, f func(k *keeperProcess) error) error {
	dir, err := os.MkdirTemp("", "gpufd-bench")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	k := &keeperProcess{program: s.gpufd, socket: filepath.Join(dir, "keeper.sock")}
	if err := k.start(); err != nil {
		return err
	}
	return errors.Join(f(k), k.stop())
}

// measureKept measures how long each way takes to map what a keeper keeps, after its writer has released it. Then it
// kills the keeper under a reader.
func measureKept(ctx context.Context, dev *cu.Device, s settings) (got kept, err error) {
	err = withKeeper(s, func(k *keeperProcess) (err error) {
		if err := put(ctx, dev, k.socket, uint64(s.attach)); err != nil {
			return err
		}
		if got.attaches, err = measureAttaches(ctx, dev, k.socket, s); err != nil {
			return err
		}
		got.restarts, err = measureRestarts(ctx, dev, k, s.rounds*10)
		return err
	})
	return got, err
}

func measureAttaches(ctx context.Context, dev *cu.Device, socket string, s settings) (samples, error) {
	on, err := dev.PrimaryContext() // users of the memory hold it, and C does
	if err != nil {
		return nil, err
	}
	defer func() { _ = on.Close() }()
	ways := []way{{attach, func(ctx context.Context) (time.Duration, error) { return attachOnce(ctx, dev, socket) }}}
	if s.c != "" {
		files, err := exported(ctx, dev, socket)
		if err != nil {
			return nil, err
		}
		defer func() { _ = sock.CloseFiles(files) }()
		r, err := rival.StartWith(ctx, bare, files, strings.Split(s.c, ",")...)
		if err != nil {
			return nil, err
		}
		defer func() { _ = r.Close() }() // what it measured counts
		ways = append(ways, asked(r, fmt.Sprintf("attach %d", uint64(s.attach))))
	}
	return takeTurns(ctx, s.rounds*20, ways)
}

func attachOnce(ctx context.Context, dev *cu.Device, socket string) (time.Duration, error) {
	begin := time.Now()
	a, err := share.Attach(ctx, socket, name, dev, nil)
	if err != nil {
		return 0, err
	}
	return time.Since(begin), a.Close()
}

// put hands the keeper size bytes, filled by the device.
func put(ctx context.Context, dev *cu.Device, socket string, size uint64) error {
	c, err := keeper.Dial(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	write := func(_ context.Context, b *vmm.Buffer) error {
		on, err := dev.PrimaryContext()
		if err != nil {
			return err
		}
		defer func() { _ = on.Close() }()
		return cu.Fill(on, b, byte(0x5a), b.Size())
	}
	_, err = c.Put(ctx, keeper.Put{Name: name}, keeper.Part{Device: dev, Size: size, Write: write})
	return err
}

// exported returns descriptors of what is kept, which the caller owns. When it returns, no more
// of the memory is mapped here.
func exported(ctx context.Context, dev *cu.Device, socket string) ([]*os.File, error) {
	a, err := share.Attach(ctx, socket, name, dev, &share.AttachOptions{Reoffer: true})
	if err != nil {
		return nil, err
	}
	_, files, err := a.Buffer().Export()
	return files, errors.Join(err, a.Close())
}

// A keeperProcess is a keeper.
type keeperProcess struct {
	program, socket string
	cmd             *exec.Cmd
}

// start returns when the keeper serves.
func (k *keeperProcess) start() error {
	k.cmd = exec.Command(k.program, "keeper", "--socket", k.socket)
	k.cmd.Stderr = os.Stderr
	out, err := k.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := k.cmd.Start(); err != nil {
		return err
	}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil { // it serves when it has said so
		return errors.Join(fmt.Errorf("%s keeper does not serve: %w", k.program, err), k.kill())
	}
	return nil
}

// kill waits for its end, which is not what it wanted.
func (k *keeperProcess) kill() error {
	err := k.cmd.Process.Kill()
	_ = k.cmd.Wait() // says that it was killed
	return err
}

// restart kills the keeper and starts another one. It says how long that took to serve.
func (k *keeperProcess) restart() (time.Duration, error) {
	if err := k.kill(); err != nil {
		return 0, err
	}
	begin := time.Now()
	err := k.start()
	return time.Since(begin), err
}

// stop ends the keeper and its fd store, and so what they keep. It does so even after the caller was told to end.
func (k *keeperProcess) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := server.End(ctx, k.socket)
	return errors.Join(err, k.cmd.Wait())
}
