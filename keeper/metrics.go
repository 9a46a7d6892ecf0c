package keeper

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"time"

	vm "github.com/VictoriaMetrics/metrics"

	"github.com/gpufd/gpufd/share"
)

// metrics is what a keeper counts, for Prometheus.
type metrics struct {
	set     *vm.Set
	attach  *vm.Histogram
	commits *vm.Counter
}

func newMetrics(s *Server) *metrics {
	m := &metrics{set: vm.NewSet()}
	m.attach = m.set.NewHistogram("gpufd_keeper_attach_seconds")
	m.commits = m.set.NewCounter("gpufd_keeper_commits_total")
	gauge := func(name string, f func(sums) float64) {
		m.set.NewGauge(name, func() float64 { return f(s.sums()) })
	}
	gauge(`gpufd_keeper_bytes{state="kept"}`, func(t sums) float64 { return float64(t.bytes) })
	gauge(`gpufd_keeper_bytes{state="retired"}`, func(t sums) float64 { return float64(t.retired) })
	gauge(`gpufd_keeper_bytes{state="reserved"}`, func(t sums) float64 { return float64(t.reserved) })
	gauge("gpufd_keeper_names", func(t sums) float64 { return float64(t.names) })
	gauge("gpufd_keeper_versions", func(t sums) float64 { return float64(t.versions) })
	gauge("gpufd_keeper_leases", func(t sums) float64 { return float64(t.leases) })
	return m
}

func (m *metrics) attached(took time.Duration) { m.attach.Update(took.Seconds()) }
func (m *metrics) committed()                  { m.commits.Inc() }

// refused counts refusals by their reasons.
func (m *metrics) refused(err error) {
	reason := "other"
	var no *share.RefusalError
	var own *Error
	switch {
	case errors.As(err, &no):
		reason = no.Code.String()
	case errors.As(err, &own):
		reason = string(own.Code)
	}
	m.set.GetOrCreateCounter(`gpufd_keeper_refusals_total{reason="` + reason + `"}`).Inc()
}

// sums is what gauges show.
type sums struct {
	bytes, retired, reserved uint64
	names, versions, leases  int
}

func (s *Server) sums() (t sums) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.state.List(s.self()) {
		t.names++
		t.bytes += n.Bytes
		t.reserved += n.ReservedBytes
		t.leases += len(n.Holders)
		if n.Version > 0 {
			t.versions++
		}
		for _, r := range n.Retired {
			t.retired += r.Bytes
			t.leases += len(r.Holders)
			t.versions++
		}
	}
	return t
}

// serveMetrics answers Prometheus at an address until the server is closed.
func (s *Server) serveMetrics(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { s.metrics.write(w) })
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: s.opts.Timeout, WriteTimeout: s.opts.Timeout}
	s.work.Go(func() { _ = srv.Serve(l) })
	context.AfterFunc(s.ctx, func() { _ = srv.Close() })
	return nil
}

func (m *metrics) write(w io.Writer) {
	m.set.WritePrometheus(w)
	vm.WriteProcessMetrics(w)
}
