package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"

	vm "github.com/VictoriaMetrics/metrics"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// metrics is what a keeper counts, for Prometheus.
type metrics struct {
	*tally
	set *vm.Set
}

func newMetrics(s *Server) *metrics {
	m := &metrics{tally: newTally(s.state.Counts()), set: vm.NewSet()}
	gauge := func(name string, f func(sums) float64) {
		m.set.NewGauge(name, func() float64 { return f(s.sums()) })
	}
	for _, is := range byteStates {
		gauge(`gpufd_keeper_bytes{state="`+is+`"}`, func(t sums) float64 { return float64(t.bytes[is]) })
	}
	gauge("gpufd_keeper_names", func(t sums) float64 { return float64(t.names) })
	gauge("gpufd_keeper_versions", func(t sums) float64 { return float64(t.versions) })
	gauge("gpufd_keeper_leases", func(t sums) float64 { return float64(t.leases) })
	gauge("gpufd_keeper_fences_awaited", func(t sums) float64 { return float64(t.fences) })
	return m
}

// The states of bytes. Those of a current version are of its parts, or draining if all that is
// wrong is that the name or the device is.
const (
	bytesRetired  = "retired"
	bytesReserved = "reserved"
)

var byteStates = []string{string(state.OK), string(state.Damaged), string(state.Quarantined), string(state.Draining), bytesRetired, bytesReserved}

// The sockets at which somebody is refused.
const (
	atReaders = "readers"
	atControl = "control"
)

// refused counts a refusal by its reason.
func (m *metrics) refused(socket string, err error) { m.tally.refused(socket, reasonOf(err)) }

// reasonOf is one of a few words.
func reasonOf(err error) string {
	var share interface {
		error
		Reason() string
	}
	var own *Error
	switch {
	case errors.As(err, &share):
		return share.Reason()
	case errors.As(err, &own):
		return string(own.Code)
	case errors.Is(err, sock.ErrRefused):
		return "not allowed"
	case errors.Is(err, context.DeadlineExceeded):
		return "timed out"
	}
	return "other"
}

// sums is what gauges show.
type sums struct {
	bytes                   map[string]uint64 // by state
	names, versions, leases int
	fences                  int // processes whose death is waited for
}

func (s *Server) sums() (t sums) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.fences, t.bytes = len(s.fences), map[string]uint64{}
	for _, n := range s.state.All() {
		t.names++
		for _, p := range n.Parts {
			t.bytes[bytesAre(n, p)] += p.Bytes
		}
		t.bytes[bytesReserved] += n.ReservedBytes
		t.leases += leases(n.Holders)
		if n.Version > 0 {
			t.versions++
		}
		for _, r := range n.Retired {
			t.leases += leases(r.Holders)
			if r.Gone {
				continue // nothing of it is kept
			}
			t.versions++
			t.bytes[bytesRetired] += r.Bytes
		}
	}
	return t
}

// bytesAre is the state of a part's bytes.
func bytesAre(n Info, p PartInfo) string {
	if p.State == state.OK && n.State == string(state.Draining) {
		return n.State
	}
	return string(p.State)
}

func leases(holders []Holder) (n int) {
	for _, h := range holders {
		if !h.Lost && !h.Revoked {
			n++
		}
	}
	return n
}

// listenMetrics listens for Prometheus, or returns nil if nobody wants that. With beside it
// does so beside another keeper of this user, which is about to end.
func listenMetrics(address string, beside bool) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	if !beside { // one that is not about to end must not be joined
		l, err := net.Listen("tcp", address)
		if err != nil {
			return nil, fmt.Errorf("keeper: an address for metrics: %w", err)
		}
		_ = l.Close()
	}
	config := net.ListenConfig{Control: reusePort}
	l, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("keeper: an address for metrics: %w", err)
	}
	return l, nil
}

// reusePort lets a successor listen at the same address (socket(7), SO_REUSEPORT). The kernel
// wants both to be of one user.
func reusePort(_, _ string, c syscall.RawConn) (err error) {
	cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	return errors.Join(cerr, os.NewSyscallError("setsockopt", err))
}

// serveMetrics answers Prometheus until the server is closed, and owns l.
func (s *Server) serveMetrics(l net.Listener) {
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { s.metrics.write(w) })
	mux.HandleFunc("/healthz", s.answerProbe)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: s.opts.Timeout, WriteTimeout: s.opts.Timeout}
	s.work.Go(func() { _ = srv.Serve(l) })
	context.AfterFunc(s.ctx, func() { _ = srv.Close() })
}

// answerProbe says that the server is not stuck. A lost fd store is said, and is no reason
// to end this process: it has what the next store needs.
func (s *Server) answerProbe(w http.ResponseWriter, _ *http.Request) {
	switch {
	case s.vault.lost():
		fmt.Fprintln(w, "serving, without an fd store")
	case s.turn.isLong():
		fmt.Fprintln(w, "serving, with an fd store that does not answer")
	default:
		fmt.Fprintln(w, "serving")
	}
}

func (m *metrics) write(w io.Writer) {
	counts := m.all()
	for key, n := range counts {
		m.show(key, n)
	}
	m.set.GetOrCreateCounter(`gpufd_keeper_attach_seconds_bucket{le="+Inf"}`).Set(counts[countAttached])
	m.set.WritePrometheus(w)
	vm.WriteProcessMetrics(w)
}

func (m *metrics) show(key string, n uint64) {
	name, parts, ok := series(key)
	switch {
	case !ok:
	case parts == 1:
		m.set.GetOrCreateCounter(name).Set(n)
	default:
		m.set.GetOrCreateFloatCounter(name).Set(float64(n) / parts)
	}
}
