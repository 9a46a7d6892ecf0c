package handoff

import (
	"context"
	"os"
	"strconv"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/sock"
)

// TestFault57_ProducerOutOfFDs: a producer that has no descriptor left for
// another connection does not give up, and serves who waits as soon as it has.
func TestFault57_ProducerOutOfFDs(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t, "-consumers", "0", "-timeout", programs.Patience.String())
	const room = 3
	all := limitFDs(t, producer, room)
	ctx, cancel := context.WithTimeout(context.Background(), programs.Patience)
	defer cancel()
	var idle []*sock.Conn
	for range 2 * room { // half of them in the backlog
		conn := ok(sock.Dial(ctx, s.Socket))(t)
		idle = append(idle, conn)
	}
	consumer := s.Consumer()
	consumer.WaitLine("Connected to producer")
	programs.Eventually(t, func() bool { return len(programs.OpenFDs(programs.PIDText(producer))) == all }, "the producer has descriptors to spare")
	require.Empty(t, programs.Find(producer, "Consumer connected"))
	for _, conn := range idle {
		require.NoError(t, conn.Close())
	}
	consumer.Succeeds()
	endsInOrder(producer)
}

// TestFault57_ConsumerOutOfFDs: a consumer that has no descriptors for all of an
// offer says what to do about it, and so does its producer, which serves the next
// one.
func TestFault57_ConsumerOutOfFDs(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	producer := s.Producer("-consumers", "2", "-size", "128MiB", "-chunk", "2MiB", "-timeout", programs.Patience.String())
	producer.WaitLine("Waiting for consumer connection...")
	producer.Stop() // it does not answer yet
	consumer := s.Consumer()
	consumer.WaitLine("Connected to producer")
	limitFDs(t, consumer, 10)
	require.NoError(t, programs.Resume(producer))
	consumer.Fails(1, "10 arrived; raise the limit on open files (ulimit -n)")
	producer.WaitLine("Consumer reported a failure: ")
	s.Consumer().Succeeds()
	producer.Fails(1, "attaching failed: ", "ulimit -n")
}

// limitFDs leaves p room for exactly so many descriptors more. It returns how many
// it can have with those.
func limitFDs(t *testing.T, p *programs.Process, room int) (all int) {
	t.Helper()
	open := programs.OpenFDs(programs.PIDText(p))
	n := 0
	for free := 0; free < room; n++ {
		if _, taken := open[n]; !taken {
			free++
		}
	}
	limit := unix.Rlimit{Cur: uint64(n), Max: uint64(n)}
	require.NoError(t, unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &limit, nil))
	return len(open) + room
}

// TestFault33_SignalStorm: signals that mean nothing interrupt both programs
// again and again, and nothing comes of it. (SIGURG is the one that Go's runtime
// handles without being asked to.)
func TestFault33_SignalStorm(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	producer := s.Producer("-size", programs.Long, "-chunk", "16MiB", "-fill", "cpu")
	defer storm(producer)()
	producer.WaitLine("Waiting for consumer connection...")
	consumer := s.Consumer("-verify", "cpu")
	defer storm(consumer)()
	consumer.Succeeds()
	producer.Succeeds()
}

// storm sends signals to each thread of p until it has ended or stop is called.
func storm(p *programs.Process) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for !p.Ended() {
			select {
			case <-stopped:
				return
			default:
			}
			threads, _ := os.ReadDir("/proc/" + programs.PIDText(p) + "/task") // it may have ended
			for _, thread := range threads {
				if tid, err := strconv.Atoi(thread.Name()); err == nil {
					_ = unix.Tgkill(p.PID(), tid, unix.SIGURG)
				}
			}
		}
	}()
	return func() {
		close(stopped)
		<-done
	}
}
