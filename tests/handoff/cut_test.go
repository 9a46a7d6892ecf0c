package handoff

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// TestFileIsCutOff: memory of the software driver whose file a holder of the descriptor
// makes shorter under a consumer that has mapped it is an illegal address to that, on the
// host's side and in a kernel. The process does not die by SIGBUS.
//
//fault:rows 77
func TestFileIsCutOff(t *testing.T) {
	programs.Parallel(t)
	if cutest.Kind() != cu.Soft {
		t.Skip("the memory of the software driver is files")
	}
	for way, what := range map[string]string{
		"cpu": "consumer: soft: a copy of 4194304 bytes from 0x", "gpu": "consumer: ptx: kernel pattern_check, line ",
	} {
		t.Run(way, func(t *testing.T) {
			s := programs.NewScene(t)
			buf := ok(vmm.New(cutest.Device(t), 4*programs.MiB))(t)
			_, files, err := buf.Export()
			require.NoError(t, err)
			srv := ok(share.Listen(s.Socket, nil))(t)
			meta := pattern.Meta{Count: pattern.Count(4 * programs.MiB)}
			offer := ok(srv.Offer(cli.OfferName, buf, &share.OfferOptions{Pending: true, Data: meta.Encode(), MaxConsumers: 1}))(t)
			consumer := s.Consumer("-verify", way)
			awaitMapped(t, consumer.PID(), files[0])
			require.NoError(t, files[0].Truncate(int64(programs.MiB)))
			ctx, cancel := context.WithTimeout(t.Context(), programs.Patience)
			defer cancel()
			require.NoError(t, offer.Publish(ctx))
			consumer.Fails(1, what, "\n  CUDA_ERROR_ILLEGAL_ADDRESS (700), noticed by cu")
			require.NoError(t, srv.Close())
			require.NoError(t, sock.CloseFiles(files))
			require.NoError(t, buf.Close())
		})
	}
}

// awaitMapped waits until the process has mapped the file.
func awaitMapped(t *testing.T, pid int, f *os.File) {
	t.Helper()
	var stat unix.Stat_t
	require.NoError(t, unix.Fstat(int(f.Fd()), &stat))
	require.Eventually(t, func() bool {
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		return err == nil && strings.Contains(string(maps), fmt.Sprintf(" %d ", stat.Ino))
	}, programs.Patience, time.Millisecond)
}
