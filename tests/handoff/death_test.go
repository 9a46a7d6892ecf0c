package handoff

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// eachHandle calls f for both kinds of handles.
func eachHandle(t *testing.T, f func(t *testing.T, handle string)) {
	for _, handle := range args("vmm", "legacy") {
		t.Run(handle, func(t *testing.T) {
			programs.Parallel(t)
			f(t, handle)
		})
	}
}

// TestFault1_ProducerDiesBeforeSending: the consumer that waits for the offer
// ends, exit 4.
func TestFault1_ProducerDiesBeforeSending(t *testing.T) {
	eachHandle(t, func(t *testing.T, handle string) {
		s, producer := serving(t, "-handle", handle)
		producer.Stop()
		consumer := s.Consumer()
		consumer.WaitLine("Connected to producer")
		s.Kill(producer)
		consumer.Fails(4, "the producer closed the connection before its offer was complete", "peer lost")
		s.Reclaimed()
	})
}

// TestFault2_ProducerDiesAfterSending: the descriptors have arrived and the
// memory is not mapped yet. It can be mapped all the same, the data is intact,
// and the attachment knows that its producer is gone.
func TestFault2_ProducerDiesAfterSending(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	const size = 5*programs.MiB + 3
	producer := s.Serving("-size", programs.Decimal(size), "-chunk", "2MiB")
	att := ok(s.Attach(share.AttachOptions{OnReceived: func(share.OfferInfo, []*os.File) { s.Kill(producer) }}))(t)
	requireOrphaned(t, att)
	programs.RequirePattern(t, att.Buffer().Device(), att.Buffer().Ptr(), size)
	require.NoError(t, att.Close())
	s.Reclaimed()
}

// requireOrphaned waits until the attachment knows that its producer is gone.
func requireOrphaned(t *testing.T, att *share.Attachment) {
	t.Helper()
	select {
	case <-att.Done():
	case <-time.After(programs.Patience):
		t.Fatal("the attachment does not notice that the producer died")
	}
	require.ErrorIs(t, att.Err(), sock.ErrPeerLost)
}

// TestFault3_ProducerDiesAfterMapping: who has mapped the memory goes on
// reading, knows that the producer is gone, and gives the memory back when it
// leaves.
func TestFault3_ProducerDiesAfterMapping(t *testing.T) {
	s := programs.NewScene(t)
	free := programs.FreeMemory(t)
	producer := s.Serving("-size", "3MiB")
	att := ok(s.Attach(share.AttachOptions{}))(t)
	s.Kill(producer)
	requireOrphaned(t, att)
	dev := att.Buffer().Device()
	programs.RequirePattern(t, dev, att.Buffer().Ptr(), 3<<20)
	require.Less(t, programs.FreeMemory(t), free, "this process still has the memory")
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // Close does it, not the collector
	require.NoError(t, att.Close())
	programs.RequireFree(t, free)
	s.Reclaimed()
}

// haltVerifying returns a consumer that was halted while it verified. Those that had done so
// before they could be are let go.
func haltVerifying(s *programs.Scene) *programs.Process {
	s.T.Helper()
	for range 20 {
		consumer := s.Consumer("-verify", "cpu")
		consumer.WaitLine("  verifying")
		if consumer.Stopped() && len(programs.Find(consumer, "Data verification")) == 0 {
			return consumer
		}
		require.NoError(s.T, programs.Resume(consumer))
		consumer.Succeeds()
	}
	s.T.Fatal("this test needs more memory to verify")
	return nil
}

// TestFault3_ConsumerSaysThatProducerDied: the program, while it verifies.
func TestFault3_ConsumerSaysThatProducerDied(t *testing.T) {
	eachHandle(t, func(t *testing.T, handle string) {
		s, producer := serving(t, "-handle", handle, "-size", programs.Long, "-consumers", "0")
		consumer := haltVerifying(s)
		s.Kill(producer)
		require.NoError(t, programs.Resume(consumer))
		consumer.Fails(4, "peer lost")
		s.Reclaimed()
	})
}

// TestFault4_ProducerDiesWhileFilling: with a consumer that waits for the data. It
// ends, exit 4, and has seen none.
func TestFault4_ProducerDiesWhileFilling(t *testing.T) {
	eachHandle(t, func(t *testing.T, handle string) {
		s := programs.NewScene(t)
		producer := s.Producer("-handle", handle, "-size", programs.Long, "-fill", "cpu")
		producer.WaitLine(map[string]string{"vmm": "Set read/write access", "legacy": "Allocated device memory"}[handle]) // now it fills
		producer.Stop()                                                                                                   // and is still at it when the consumer comes
		consumer := s.Consumer()
		consumer.WaitLine("Connected to producer")
		s.Kill(producer)
		consumer.Fails(4, "the producer closed the connection before its offer was complete", "peer lost")
		require.Empty(t, programs.Find(consumer, "Received"), consumer.Dump())
		require.Empty(t, programs.Find(consumer, "Data verification"), consumer.Dump())
		s.Reclaimed()
	})
}

// TestFault5and6_ConsumerDies: wherever it is killed, the producer says so,
// gets everything back and serves the next one.
func TestFault5and6_ConsumerDies(t *testing.T) {
	programs.Parallel(t)
	for name, mode := range map[string]string{"fault 5: received": childReceived, "fault 6: mapped": childMapped} {
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			s, producer := serving(t, "-consumers", "0", "-size", "5MiB", "-chunk", "2MiB")
			s.Consumer().Succeeds()
			before := len(programs.OpenFDs(programs.PIDText(producer)))
			consumer := s.Child(nil, mode, nil, s.Socket)
			consumer.WaitLine("holding")
			consumer.Kill()
			producer.WaitLine("Lost consumer 2: share: the consumer left without a verdict")
			programs.Eventually(t, func() bool { return len(programs.OpenFDs(programs.PIDText(producer))) <= before }, "the producer keeps descriptors")
			s.Consumer().Succeeds()
			producer.Signal(syscall.SIGTERM)
			producer.Fails(4, "consumer 2", "left without a verdict")
		})
	}
}

// TestFault6_OnlyConsumerDies: a producer that has no other consumer ends, 4.
func TestFault6_OnlyConsumerDies(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t)
	consumer := s.Relayed(t, nil, programs.Drop(programs.TypeVerdict)).Consumer()
	consumer.WaitLine("Received FD")
	consumer.Kill()
	producer.Fails(4, fmt.Sprintf("consumer 1 (pid %d", os.Getpid()), "left without a verdict")
	require.Len(t, programs.Find(producer, "Lost consumer 1: "), 1)
}

// TestFault7_BothDie: the memory is free, and the next start reclaims the
// socket.
func TestFault7_BothDie(t *testing.T) {
	s := programs.NewScene(t)
	free := programs.FreeMemory(t)
	producer := s.Serving()
	consumer := s.Child(nil, childMapped, nil, s.Socket)
	consumer.WaitLine("holding")
	require.Less(t, programs.FreeMemory(t), free)
	s.Kill(producer)
	consumer.Kill()
	programs.RequireFree(t, free)
	s.Reclaimed()
}

// TestFault16_Exec: a child that a user of device memory starts inherits
// nothing of it.
func TestFault16_Exec(t *testing.T) {
	s := programs.NewScene(t)
	dev := cutest.Device(t)
	buf := ok(vmm.New(dev, 2*programs.MiB))(t)
	defer func() { require.NoError(t, buf.Close()) }()
	_, files, err := buf.Export()
	require.NoError(t, err)
	defer func() { require.NoError(t, sock.CloseFiles(files)) }()
	srv := ok(share.Listen(s.Socket, nil))(t)
	defer func() { require.NoError(t, srv.Close()) }()
	mustAttachElsewhere(s, t)

	p := s.Child(nil, childFDs, nil)
	p.Succeeds()
	for fd, target := range programs.OpenFDs("self") {
		_, older := inherited[fd]
		exported := fd == int(files[0].Fd())
		if older || cutest.Kind() == cu.CUDA && !exported { // what libcuda opened is its own
			continue
		}
		require.Empty(t, programs.Find(p, programs.Decimal(uint64(fd))+" "), "descriptor %d of %s", fd, target)
	}
}

// mustAttachElsewhere has this process hold a lease on a producer, so that it
// has received descriptors, too.
func mustAttachElsewhere(s *programs.Scene, t *testing.T) {
	other := programs.NewScene(t)
	producer := other.Serving()
	att := ok(other.Attach(share.AttachOptions{}))(t)
	t.Cleanup(func() {
		programs.Report(t, att, nil)
		require.NoError(t, att.Close())
		producer.Succeeds()
	})
}

// TestSilentPeer: one that connects and never speaks is sent away after
// -timeout, and costs nobody else anything.
func TestSilentPeer(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t, "-consumers", "0", "-timeout", programs.Enough)
	ctx, cancel := context.WithTimeout(context.Background(), programs.Patience)
	defer cancel()
	silent, err := sock.Dial(ctx, s.Socket)
	require.NoError(t, err)
	defer silent.Close()
	s.Consumer().Succeeds()
	producer.WaitLine("  turned a peer away")
	for err == nil { // it is told why before it is disconnected
		_, err = silent.Receive(ctx)
	}
	require.ErrorIs(t, err, sock.ErrPeerLost)
	s.Consumer().Succeeds()
	endsInOrder(producer)
}

// TestTimeouts: every wait for a peer is bounded by -timeout.
//
//fault:rows 31
func TestTimeouts(t *testing.T) {
	programs.Parallel(t)
	t.Run("no consumer comes", func(t *testing.T) {
		programs.Parallel(t)
		s := programs.NewScene(t)
		started := time.Now()
		s.Producer("-timeout", "500ms").Fails(4, "no consumer came in time", "500ms", "start a consumer")
		require.GreaterOrEqual(t, time.Since(started), 500*time.Millisecond)
	})
	t.Run("the producer hangs", func(t *testing.T) {
		programs.Parallel(t)
		s, producer := serving(t, "-consumers", "0")
		producer.Stop()
		s.Consumer("-timeout", "300ms").Fails(4, "took too long", "-timeout")
		require.NoError(t, programs.Resume(producer))
		s.Consumer().Succeeds()
		producer.Signal(syscall.SIGTERM)
		// It may have heard of the first one, which says that it failed, or not.
		code := producer.Wait()
		require.Contains(t, []int{0, 1, 4}, code, producer.Dump())
		if code == 1 {
			require.Len(t, programs.Find(producer, "Consumer reported a failure: "), 1, producer.Dump())
		}
	})
	t.Run("the consumer hangs", func(t *testing.T) {
		programs.Parallel(t)
		s, producer := serving(t, "-timeout", programs.Enough)
		consumer := s.Relayed(t, nil, programs.Drop(programs.TypeVerdict)).Consumer()
		consumer.WaitLine("Received FD")
		consumer.Stop()
		producer.Fails(4, "consumer 1", "took too long")
		require.NoError(t, programs.Resume(consumer))
		require.Equal(t, 4, consumer.Wait(), consumer.Dump())
	})
}
