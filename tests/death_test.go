package tests

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// TestFault1_ProducerDiesBeforeSending: the consumer that waits for the offer
// ends, exit 4.
func TestFault1_ProducerDiesBeforeSending(t *testing.T) {
	s := newScene(t)
	producer := s.serving()
	producer.stop()
	consumer := s.consumer()
	consumer.waitLine("Connected to producer")
	s.kill(producer)
	consumer.fails(4, "the producer closed the connection before its offer was complete", "peer lost")
	s.reclaimed()
}

// TestFault2_ProducerDiesAfterSending: the descriptors have arrived and the
// memory is not mapped yet. It can be mapped all the same, the data is intact,
// and the attachment knows that its producer is gone.
func TestFault2_ProducerDiesAfterSending(t *testing.T) {
	s := newScene(t)
	const size = 5*mib + 3
	producer := s.serving("-size", decimal(size), "-chunk", "2MiB")
	att, err := s.attach(share.OnReceived(func(share.Offer, []*os.File) { s.kill(producer) }))
	require.NoError(t, err)
	requireOrphaned(t, att)
	requirePattern(t, att.Buffer().Device(), att.Buffer().Ptr(), size)
	require.NoError(t, att.Close())
	s.reclaimed()
}

// requireOrphaned waits until the attachment knows that its producer is gone.
func requireOrphaned(t *testing.T, att *share.Attachment) {
	t.Helper()
	select {
	case <-att.Done():
	case <-time.After(patience):
		t.Fatal("the attachment does not notice that the producer died")
	}
	require.ErrorIs(t, att.Err(), sock.ErrPeerLost)
}

// TestFault3_ProducerDiesAfterMapping: who has mapped the memory goes on
// reading, knows that the producer is gone, and gives the memory back when it
// leaves.
func TestFault3_ProducerDiesAfterMapping(t *testing.T) {
	s := newScene(t)
	free := freeMemory(t)
	producer := s.serving("-size", "3MiB")
	att, err := s.attach()
	require.NoError(t, err)
	s.kill(producer)
	requireOrphaned(t, att)
	dev := att.Buffer().Device()
	requirePattern(t, dev, att.Buffer().Ptr(), 3<<20)
	require.Less(t, freeMemory(t), free, "this process still has the memory")
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // Close does it, not the collector
	require.NoError(t, att.Close())
	requireFree(t, free)
	s.reclaimed()
}

// haltVerifying returns a consumer that was halted while it verified. Those that had done so
// before they could be are let go.
func (s *scene) haltVerifying() *process {
	s.t.Helper()
	for range 20 {
		consumer := s.consumer("-verify", "cpu")
		consumer.waitLine("  verifying")
		if consumer.stopped() && len(find(consumer, "Data verification")) == 0 {
			return consumer
		}
		require.NoError(s.t, resume(consumer))
		consumer.succeeds()
	}
	s.t.Fatal("this test needs more memory to verify")
	return nil
}

// TestFault3_ConsumerSaysThatProducerDied: the program, while it verifies.
func TestFault3_ConsumerSaysThatProducerDied(t *testing.T) {
	s := newScene(t)
	producer := s.serving("-size", long, "-consumers", "0")
	consumer := s.haltVerifying()
	s.kill(producer)
	require.NoError(t, resume(consumer))
	consumer.fails(4, "peer lost")
	s.reclaimed()
}

// TestFault4_ProducerDiesWhileFilling: with a consumer that waits for the data. It
// ends, exit 4, and has seen none.
func TestFault4_ProducerDiesWhileFilling(t *testing.T) {
	s := newScene(t)
	producer := s.producer("-size", long, "-fill", "cpu")
	producer.waitLine("Set read/write access") // now it fills
	producer.stop()                            // and is still at it when the consumer comes
	consumer := s.consumer()
	consumer.waitLine("Connected to producer")
	s.kill(producer)
	consumer.fails(4, "the producer closed the connection before its offer was complete", "peer lost")
	require.Empty(t, find(consumer, "Received FD"), consumer.dump())
	require.Empty(t, find(consumer, "Data verification"), consumer.dump())
	s.reclaimed()
}

// TestFault5and6_ConsumerDies: wherever it is killed, the producer says so,
// gets everything back and serves the next one.
func TestFault5and6_ConsumerDies(t *testing.T) {
	for name, mode := range map[string]string{"fault 5: received": childReceived, "fault 6: mapped": childMapped} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			producer := s.serving("-consumers", "0", "-size", "5MiB", "-chunk", "2MiB")
			s.consumer().succeeds()
			before := len(openFDs(pidText(producer)))
			consumer := s.child(nil, mode, nil, s.socket)
			consumer.waitLine("holding")
			consumer.kill()
			producer.waitLine("Lost consumer 2: share: the consumer left without a verdict")
			eventually(t, func() bool { return len(openFDs(pidText(producer))) <= before }, "the producer keeps descriptors")
			s.consumer().succeeds()
			producer.signal(syscall.SIGTERM)
			producer.fails(4, "consumer 2", "left without a verdict")
		})
	}
}

// TestFault6_OnlyConsumerDies: a producer that has no other consumer ends, 4.
func TestFault6_OnlyConsumerDies(t *testing.T) {
	s := newScene(t)
	producer := s.serving()
	consumer := s.relayed(t, nil, unsaid(typeVerdict)).consumer()
	consumer.waitLine("Received FD")
	consumer.kill()
	producer.fails(4, fmt.Sprintf("consumer 1 (pid %d", os.Getpid()), "left without a verdict")
	require.Len(t, find(producer, "Lost consumer 1: "), 1)
}

// TestFault7_BothDie: the memory is free, and the next start reclaims the
// socket.
func TestFault7_BothDie(t *testing.T) {
	s := newScene(t)
	free := freeMemory(t)
	producer := s.serving()
	consumer := s.child(nil, childMapped, nil, s.socket)
	consumer.waitLine("holding")
	require.Less(t, freeMemory(t), free)
	s.kill(producer)
	consumer.kill()
	requireFree(t, free)
	s.reclaimed()
}

// TestFault9and12_ProducerEndsFirst: it gives everything back and exits in good order
// while a consumer maps, or has mapped, the memory. That works, and the memory is free
// when the last one lets go of it.
func TestFault9and12_ProducerEndsFirst(t *testing.T) {
	for name, mapped := range map[string]bool{"fault 9: while a consumer maps": false, "fault 12: before its consumer": true} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			free := freeMemory(t)
			producer := s.serving("-size", "3MiB")
			ends := func() {
				producer.signal(syscall.SIGTERM)
				producer.succeeds()
			}
			att, err := s.attach(share.OnReceived(func(share.Offer, []*os.File) {
				if !mapped {
					ends()
				}
			}))
			require.NoError(t, err)
			if mapped {
				ends()
			}
			<-att.Done()
			require.ErrorIs(t, att.Err(), share.ErrRevoked)
			requirePattern(t, att.Buffer().Device(), att.Buffer().Ptr(), 3<<20)
			require.Less(t, freeMemory(t), free, "this process still has the memory")
			require.NoError(t, att.Close())
			requireFree(t, free)
		})
	}
}

// TestFault16_Exec: a child that a user of device memory starts inherits
// nothing of it.
func TestFault16_Exec(t *testing.T) {
	s := newScene(t)
	dev := cutest.Device(t)
	buf, err := vmm.New(dev, 2*mib)
	require.NoError(t, err)
	defer func() { require.NoError(t, buf.Close()) }()
	_, files, err := buf.Export()
	require.NoError(t, err)
	defer func() { require.NoError(t, sock.CloseFiles(files)) }()
	srv, err := share.Listen(s.socket)
	require.NoError(t, err)
	defer func() { require.NoError(t, srv.Close()) }()
	s.mustAttachElsewhere(t)

	p := s.child(nil, childFDs, nil)
	p.succeeds()
	for fd, target := range openFDs("self") {
		_, older := inherited[fd]
		exported := fd == int(files[0].Fd())
		if older || cutest.Kind() == cu.CUDA && !exported { // what libcuda opened is its own
			continue
		}
		require.Empty(t, find(p, decimal(uint64(fd))+" "), "descriptor %d of %s", fd, target)
	}
}

// mustAttachElsewhere has this process hold a lease on a producer, so that it
// has received descriptors, too.
func (s *scene) mustAttachElsewhere(t *testing.T) {
	other := newScene(t)
	producer := other.serving()
	att, err := other.attach()
	require.NoError(t, err)
	t.Cleanup(func() {
		report(t, att, nil)
		require.NoError(t, att.Close())
		producer.succeeds()
	})
}

// TestSilentPeer: one that connects and never speaks is sent away after
// -timeout, and costs nobody else anything.
func TestSilentPeer(t *testing.T) {
	s := newScene(t)
	producer := s.serving("-consumers", "0", "-timeout", enough)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	silent, err := sock.Dial(ctx, s.socket)
	require.NoError(t, err)
	defer silent.Close()
	s.consumer().succeeds()
	producer.waitLine("  turned a peer away")
	for err == nil { // it is told why before it is disconnected
		_, err = silent.Receive(ctx)
	}
	require.ErrorIs(t, err, sock.ErrPeerLost)
	s.consumer().succeeds()
	producer.signal(syscall.SIGTERM)
	producer.succeeds()
}

// TestTimeouts: every wait for a peer is bounded by -timeout.
//
//fault:rows 31
func TestTimeouts(t *testing.T) {
	t.Run("no consumer comes", func(t *testing.T) {
		s := newScene(t)
		started := time.Now()
		s.producer("-timeout", "500ms").fails(4, "no consumer came in time", "500ms", "start a consumer")
		require.GreaterOrEqual(t, time.Since(started), 500*time.Millisecond)
	})
	t.Run("the producer hangs", func(t *testing.T) {
		s := newScene(t)
		producer := s.serving("-consumers", "0")
		producer.stop()
		s.consumer("-timeout", "300ms").fails(4, "took too long", "-timeout")
		require.NoError(t, resume(producer))
		s.consumer().succeeds()
		producer.signal(syscall.SIGTERM)
		// It may or may not have noticed that the first one was there.
		require.Contains(t, []int{0, 4}, producer.wait(), producer.dump())
	})
	t.Run("the consumer hangs", func(t *testing.T) {
		s := newScene(t)
		producer := s.serving("-timeout", enough)
		consumer := s.relayed(t, nil, unsaid(typeVerdict)).consumer()
		consumer.waitLine("Received FD")
		consumer.stop()
		producer.fails(4, "consumer 1", "took too long")
		require.NoError(t, resume(consumer))
		require.Equal(t, 4, consumer.wait(), consumer.dump())
	})
}
