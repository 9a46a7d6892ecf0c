package share

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/mapped"
)

// childSleeper attaches, and detaches and reattaches when it is told. It says what it has: an address, and whether
// the bytes are the noise of the line's seed.
func childSleeper() error {
	dev, ctx, err := childDevice()
	if err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(context.Background(), childLife)
	defer cancel()
	att, err := Attach(soon, os.Getenv(pathEnv), "data", dev, nil)
	if err != nil {
		return errors.Join(err, ctx.Close())
	}
	fmt.Println(att.Ptr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		if in.Text() == "detach" {
			kept, err := att.Detach(soon, 0)
			fmt.Println(kept, err)
			continue
		}
		next, err := att.Reattach(soon, Same)
		if err != nil {
			return errors.Join(err, att.Close(), ctx.Close())
		}
		att = next
		got := make([]byte, att.Size())
		if err := cu.CopyToHost(ctx, got, att.Ptr()); err != nil {
			return errors.Join(err, att.Close(), ctx.Close())
		}
		fmt.Println(att.Ptr(), string(got) == string(noise(att.Size(), 2)))
	}
	return errors.Join(att.Close(), ctx.Close())
}

// C44 of docs/driver-facts.md: a consumer that has detached has nothing of others mapped, which it says (package mapped). So
// it can be checkpointed, where the driver does that; afterwards it has the memory again, at the same address.
func TestCheckpointOfADetachedConsumer(t *testing.T) {
	dev, ctx, srv := listening(t)
	buf := newBuffer(t, ctx, 1<<20)
	put(t, srv, buf)
	c := start(t, "sleeper", srv.Path(), "")
	require.True(t, c.out.Scan())
	at, pid := c.out.Text(), c.cmd.Process.Pid
	tell := func(line string) {
		t.Helper()
		require.NoError(t, errOf(fmt.Fprintln(c.in.(io.Writer), line)))
	}
	for range 3 {
		require.EqualValues(t, 1, ok(mapped.Of(pid))(t))
		tell("detach")
		c.says(t, "true <nil>")
		require.Zero(t, ok(mapped.Of(pid))(t))
		checkpoint(t, dev.Driver().Process(pid))
		require.NoError(t, cu.CopyToDevice(ctx, buf.Ptr(), noise(buf.Size(), 2)))
		require.NoError(t, ctx.Synchronize(soon(t)))
		tell("reattach")
		c.says(t, at+" true")
	}
	c.end(t)
}

// checkpoint checkpoints and restores a process, where the driver can.
func checkpoint(t *testing.T, p cu.Process) {
	t.Helper()
	_, err := p.State()
	if cutest.Kind() == cu.Soft && errors.Is(err, cu.ErrNotSupported) || errors.Is(err, cu.ErrSymbolMissing) {
		return
	}
	require.NoError(t, err)
	require.NoError(t, p.Lock(10*time.Second))
	require.NoError(t, p.Checkpoint())
	require.NoError(t, p.Restore())
	require.NoError(t, p.Unlock())
}
