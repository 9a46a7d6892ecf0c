package doctor

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// checkpoints are the answers of a driver that has checkpoints, to the process that makes them.
func checkpoints(lock, checkpoint, restore, unlock string) []string {
	return []string{"owner cuCheckpointProcessGetState 0", "owner cuCheckpointProcessLock " + lock,
		"owner cuCheckpointProcessCheckpoint " + checkpoint, "owner cuCheckpointProcessRestore " + restore,
		"owner cuCheckpointProcessUnlock " + unlock}
}

// A checkpoint is tried with a process of doctor, and what the driver says of it is a warning.
func TestCheckpoint(t *testing.T) {
	needSoft(t)
	t.Setenv("GPUFD_SOFT_DEVICES", "1")
	t.Setenv("GPUFD_SOFT_VERSION", "") // the newest
	for _, c := range []struct {
		name   string
		faults []string
		status Status
		seen   string
		code   int
	}{
		{"no checkpoints", nil, Unknown, "the software driver has no checkpoints", cli.ExitOK},
		{"one", checkpoints("0", "0", "0", "0"), OK, "a process was checkpointed and restored, and its 2 MiB were verified", cli.ExitOK},
		{"not allowed", checkpoints("304", "0", "0", "0"), Warn, "cuCheckpointProcessLock: CUDA_ERROR_OPERATING_SYSTEM", cli.ExitOK},
		{"no restore", checkpoints("0", "0", "801", "401"), Warn, "cuCheckpointProcessRestore: CUDA_ERROR_NOT_SUPPORTED", cli.ExitOK},
		{"no end", checkpoints("0", "hang", "0", "0"), Fail, `did not answer in time to "checkpoint"`, cli.ExitPeer},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(faultsEnv, strings.Join(c.faults, ","))
			config := config(t)
			if c.status == Fail {
				config.Timeout = 5 * time.Second // for what does not hang, on a busy machine
			}
			rows := Run(t.Context(), config)
			r := find(t, rows, "checkpoint")
			require.Equal(t, c.status, r.Status, "%v", r)
			require.Contains(t, r.Seen, c.seen)
			require.Equal(t, c.code, ExitCode(rows))
			switch c.status {
			case Warn:
				named(t, rows, "checkpoint")
			case Fail:
				named(t, rows, "timeout")
			default:
				named(t, rows)
			}
		})
	}
}

// A process whose number may be another's here is not checkpointed, nor is any by an old driver.
func TestNoCheckpoint(t *testing.T) {
	needSoft(t)
	t.Setenv("GPUFD_SOFT_DEVICES", "1")
	t.Setenv("GPUFD_SOFT_VERSION", "") // the newest
	t.Run("an old driver", func(t *testing.T) {
		t.Setenv("GPUFD_SOFT_VERSION", "12040")
		r := find(t, Run(t.Context(), config(t)), "checkpoint")
		require.Equal(t, Unknown, r.Status)
		require.Contains(t, r.Seen, "not tried: it takes a driver of CUDA 12.8")
	})
	t.Run("another PID namespace", func(t *testing.T) {
		t.Setenv(faultsEnv, "owner cuCheckpointProcessGetState 0")
		in, c := cutest.Namespaced(t), config(t)
		start := c.Child
		c.Child = func() *exec.Cmd {
			cmd := start()
			cutest.Front(t, cmd, in)
			return cmd
		}
		r := find(t, Run(t.Context(), c), "checkpoint")
		require.Equal(t, Unknown, r.Status, "%v", r)
		require.Equal(t, "not tried: the exporting process is in another PID namespace, as number 1", r.Seen)
	})
}

// childMapped maps memory as if it were another's until it is told to unmap it, and ends when its input does.
func childMapped() error {
	drv, err := openBroken()
	if err != nil {
		return err
	}
	dev := drv.Devices()[0]
	own, err := vmm.New(dev, size)
	if err != nil {
		return err
	}
	d, files, err := own.Export()
	if err != nil {
		return err
	}
	b, err := vmm.Import(dev, d, files)
	if err != nil {
		return errors.Join(err, sock.CloseFiles(files))
	}
	in := bufio.NewScanner(os.Stdin)
	fmt.Println("mapped")
	in.Scan()
	err = errors.Join(b.Close(), sock.CloseFiles(files))
	fmt.Println("unmapped")
	in.Scan()
	return errors.Join(err, own.Close())
}

// A process that has others' memory mapped is named, until it has unmapped it.
func TestMappedMemory(t *testing.T) {
	needSoft(t)
	t.Setenv("GPUFD_SOFT_DEVICES", "1")
	t.Setenv("GPUFD_SOFT_VERSION", "") // the newest
	cmd := cutest.Child(t.Context(), "mapped")
	in, out := ok(cmd.StdinPipe())(t), bufio.NewScanner(ok(cmd.StdoutPipe())(t))
	var trouble bytes.Buffer
	cmd.Stderr = &trouble
	require.NoError(t, cmd.Start())
	require.True(t, out.Scan(), "%s", &trouble)
	rows := Run(t.Context(), config(t))
	named(t, rows, "mapped-memory")
	r := find(t, rows, "mapped-memory")
	require.Contains(t, r.Seen, fmt.Sprintf("a checkpoint would lose what has memory of others mapped: process %d (", cmd.Process.Pid))
	require.Contains(t, r.Do, "before a checkpoint")
	require.Equal(t, cli.ExitOK, ExitCode(rows))

	require.NoError(t, func() error { _, err := fmt.Fprintln(in); return err }())
	require.True(t, out.Scan(), "%s", &trouble)
	require.Equal(t, OK, mappedMemory(cu.Soft, nil).Status)
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait(), "%s", &trouble)
}
