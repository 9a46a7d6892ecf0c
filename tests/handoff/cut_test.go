package handoff

import (
	"context"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

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
			buf, err := vmm.New(cutest.Device(t), 4*programs.MiB)
			require.NoError(t, err)
			_, files, err := buf.Export()
			require.NoError(t, err)
			srv, err := share.Listen(s.Socket)
			require.NoError(t, err)
			meta := pattern.Meta{Count: pattern.Count(4 * programs.MiB)}
			prepared, err := srv.Prepare(cli.OfferName, buf, share.ReadOnly, share.WithData(meta.Encode()), share.WithLeases(1))
			require.NoError(t, err)
			consumer := s.Consumer("-verify", way)
			consumer.WaitLine("Set read-only access permissions")
			require.NoError(t, files[0].Truncate(int64(programs.MiB)))
			ctx, cancel := context.WithTimeout(t.Context(), programs.Patience)
			defer cancel()
			require.NoError(t, prepared.Offer(ctx))
			consumer.Fails(1, what, "\n  CUDA_ERROR_ILLEGAL_ADDRESS (700), noticed by cu")
			require.NoError(t, srv.Close())
			require.NoError(t, sock.CloseFiles(files))
			require.NoError(t, buf.Close())
		})
	}
}
