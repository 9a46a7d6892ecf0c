package load

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// restarts is how often each kind of end comes: 50 times with GPUFD_SOAK.
func restarts(t *testing.T) int {
	switch {
	case os.Getenv(soakEnv) != "":
		return 50
	case testing.Short() || cutest.Emulated():
		return 2
	}
	return 10
}

// keptScene is a keeper and its fd store, as their units start them.
type keptScene struct {
	*programs.Scene
	store, keeper *programs.Process
}

func newKeptScene(t *testing.T) *keptScene {
	s := &keptScene{Scene: programs.NewScene(t)}
	s.store = programs.Start(t, "store", programs.ProgramPath(t, "gpufd"), nil, "fd-store", s.Socket+".store")
	s.start()
	return s
}

// start starts a keeper, and returns when it serves.
func (s *keptScene) start(args ...string) {
	s.T.Helper()
	s.keeper = programs.Start(s.T, "keeper", programs.ProgramPath(s.T, "gpufd"), nil, append([]string{"keeper", "--await-store", "--socket", s.Socket}, args...)...)
	s.keeper.WaitLine("Keeping ")
}

// A requestServer answers from the newest memory of a name. It notes what a request can find wrong.
type requestServer struct {
	mu       sync.Mutex
	att      *share.Attachment
	versions int // that it was given
	at       cu.DevicePtr
}

// follow takes each version until ctx ends.
func (r *requestServer) follow(ctx context.Context, socket string, dev *cu.Device) error {
	for att, err := range share.Follow(ctx, socket, "w", dev, nil) {
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.att, r.at = att, att.Ptr()
		r.versions++
		r.mu.Unlock()
		<-att.Context().Done()
		r.mu.Lock()
		r.att = nil
		r.mu.Unlock()
	}
	return errors.New("it ends without an error")
}

// answer answers a request.
func (r *requestServer) answer(ctx *cu.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.att == nil {
		return errors.New("there are no weights")
	}
	if r.att.Ptr() != r.at {
		return errors.New("the address has changed")
	}
	var word [4]byte
	if err := cu.CopyToHost(ctx, word[:], r.att.Ptr()); err != nil {
		return err
	}
	if word != [4]byte{7, 7, 7, 7} {
		return errors.New("the bytes have changed")
	}
	return nil
}

// A keeper that is ended by SIGTERM and started again as its unit does, that another takes over, or that
// is killed, is not noticed by a server that answers 200 requests a second from what it keeps: none
// finds the weights missing or at another address.
func TestRequestsOutliveTheKeeper(t *testing.T) {
	s := newKeptScene(t)
	dev := cutest.Device(t)
	primary, err := dev.PrimaryContext()
	require.NoError(t, err)
	defer primary.Close()
	client, err := keeper.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	defer client.Close()
	_, err = client.Put(t.Context(), keeper.Put{Name: "w"}, keeper.Part{Device: dev, Size: 1 << 20, Write: func(_ context.Context, buf *vmm.Buffer) error {
		return cu.Fill(primary, buf.Ptr(), uint8(7), buf.Size())
	}})
	require.NoError(t, err)

	life, stop := context.WithCancel(t.Context())
	r := &requestServer{}
	followed := make(chan error, 1)
	go func() { followed <- r.follow(life, s.Socket, dev) }()
	programs.Eventually(t, func() bool { return r.answer(primary) == nil }, "no weights come")
	answered, worst := 0, time.Duration(0)
	served, halt := make(chan error, 1), make(chan struct{})
	go func() {
		tick := time.NewTicker(time.Second / 200)
		defer tick.Stop()
		for {
			select {
			case <-halt:
				served <- nil
				return
			case <-tick.C:
			}
			began := time.Now()
			if err := r.answer(primary); err != nil {
				served <- err
				return
			}
			answered, worst = answered+1, max(worst, time.Since(began))
		}
	}()
	resumed := func() bool {
		info, err := client.Stat(t.Context(), "w")
		return err == nil && len(info.Holders) == 1 && !info.Holders[0].Lost
	}
	for range restarts(t) {
		s.keeper.Signal(syscall.SIGTERM)
		s.keeper.Succeeds()
		s.start()
		programs.Eventually(t, resumed, "after SIGTERM, the reader has no lease")

		before := s.keeper
		s.start("--take-over")
		before.Succeeds()
		programs.Eventually(t, resumed, "after a take-over, the reader has no lease")

		s.keeper.Kill()
		s.start()
		programs.Eventually(t, resumed, "after kill -9, the reader has no lease")
	}
	r.mu.Lock()
	require.Equal(t, 1, r.versions, "it was given the weights once")
	r.mu.Unlock()
	close(halt)
	require.NoError(t, <-served)
	stop()
	require.ErrorIs(t, <-followed, context.Canceled)
	t.Logf("%d restarts of each kind: %d requests, the longest took %s", restarts(t), answered, worst)
	end := programs.Start(t, "end", programs.ProgramPath(t, "gpufd"), nil, "keeper", "--end", "--socket", s.Socket)
	end.Succeeds()
	s.store.Succeeds()
	require.NoFileExists(t, filepath.Join(s.Dir, "s"))
}
