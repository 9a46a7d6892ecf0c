package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// metrics is what a keeper counts, for Prometheus.
type metrics struct {
	*tally
	sums func() sums
}

func newMetrics(s *Server) *metrics { return &metrics{newTally(s.state.Counts()), s.sums} }

// The states of bytes. Bytes of a current version have the state of their part, or draining if
// the part is ok and its name or device is draining.
const (
	bytesRetired  = "retired"
	bytesReserved = "reserved"
)

var byteStates = []string{string(state.OK), string(state.Damaged), string(state.Quarantined), string(state.Draining), bytesRetired, bytesReserved}

// The sockets that count refusals.
const (
	atReaders = "readers"
	atControl = "control"
)

// refused counts a refusal by its reason.
func (m *metrics) refused(socket string, err error) { m.tally.refused(socket, reasonOf(err)) }

// reasonOf returns one of a few words.
func reasonOf(err error) string {
	var refusal interface {
		error
		Reason() string
	}
	var own *state.Error
	switch {
	case errors.As(err, &refusal):
		return refusal.Reason()
	case errors.As(err, &own):
		return string(own.Code)
	case errors.Is(err, sock.ErrNotAdmitted):
		return "not allowed"
	case errors.Is(err, context.DeadlineExceeded):
		return "timed out"
	}
	return "other"
}

// sums are the values of gauges.
type sums struct {
	bytes                   map[string]uint64 // by state
	names, versions, leases int
	fences                  int // processes whose end is awaited
	parked                  uint64
	pool                    api.Pool
}

func (s *Server) sums() (t sums) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.fences, t.bytes, t.parked = len(s.fences), map[string]uint64{}, s.state.ParkedBytes()
	if p := s.pool(); p != nil {
		t.pool = *p
	}
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

// bytesAre returns the state of a part's bytes.
func bytesAre(n state.Info, p state.PartInfo) string {
	if p.State == state.OK && n.State == string(state.Draining) {
		return n.State
	}
	return string(p.State)
}

func leases(holders []api.Holder) (n int) {
	for _, h := range holders {
		if !h.Lost && !h.Revoked {
			n++
		}
	}
	return n
}

// listenMetrics listens for Prometheus, or returns nil without an address. If beside is set, it
// shares the address with another keeper of this user, which is about to end.
func listenMetrics(address string, beside bool) (net.Listener, error) {
	if address == "" {
		return nil, nil
	}
	if !beside { // do not share with a keeper that is not about to end
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
// requires both to be of one user.
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

// answerProbe reports that the server is not stuck. It mentions a lost fd store, which is no
// reason to end this process: it has what the next store needs.
func (s *Server) answerProbe(w http.ResponseWriter, _ *http.Request) {
	switch {
	case s.vault.lost():
		fmt.Fprintln(w, "serving, without an fd store")
	case s.changeLock.heldLong():
		fmt.Fprintln(w, "serving, with an fd store that does not answer")
	default:
		fmt.Fprintln(w, "serving")
	}
}

// write writes all metrics in Prometheus' text format, sorted by name.
func (m *metrics) write(w io.Writer) {
	t, counts, values := m.sums(), m.all(), processMetrics()
	for _, is := range byteStates {
		values[`gpufd_keeper_bytes{state="`+is+`"}`] = float64(t.bytes[is])
	}
	values["gpufd_keeper_parked_bytes"] = float64(t.parked)
	values[`gpufd_keeper_pool_bytes{state="free"}`] = float64(t.pool.Free)
	values[`gpufd_keeper_pool_bytes{state="used"}`] = float64(t.pool.Bytes - t.pool.Free)
	values["gpufd_keeper_names"] = float64(t.names)
	values["gpufd_keeper_versions"] = float64(t.versions)
	values["gpufd_keeper_leases"] = float64(t.leases)
	values["gpufd_keeper_fences_awaited"] = float64(t.fences)
	for key, n := range counts {
		if name, parts, ok := series(key); ok {
			values[name] = float64(n) / parts
		}
	}
	values[`gpufd_keeper_attach_seconds_bucket{le="+Inf"}`] = float64(counts[countAttached])
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fmt.Fprintf(w, "%s %s\n", name, strconv.FormatFloat(values[name], 'f', -1, 64))
	}
}

// started is when this process started, for [processMetrics].
var started = time.Now()

// processMetrics returns what the kernel counts of this process (proc_pid_stat(5),
// proc_pid_status(5) and proc_pid_fd(5)).
func processMetrics() map[string]float64 {
	values := map[string]float64{"process_start_time_seconds": float64(started.Unix())}
	stat, _ := os.ReadFile("/proc/self/stat")
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // after the name, from field 3
	for name, m := range map[string]struct {
		field int
		per   float64
	}{
		"process_minor_pagefaults_total": {10, 1}, "process_major_pagefaults_total": {12, 1}, "process_cpu_seconds_user_total": {14, 100},
		"process_cpu_seconds_system_total": {15, 100}, "process_num_threads": {20, 1},
	} {
		if n := m.field - 3; n < len(f) {
			v, _ := strconv.ParseFloat(f[n], 64)
			values[name] = v / m.per
		}
	}
	values["process_cpu_seconds_total"] = values["process_cpu_seconds_user_total"] + values["process_cpu_seconds_system_total"]
	status, _ := os.ReadFile("/proc/self/status")
	for line := range strings.Lines(string(status)) {
		key, text, _ := strings.Cut(line, ":")
		name := map[string]string{
			"VmPeak": "virtual_memory_peak", "VmSize": "virtual_memory", "VmHWM": "resident_memory_peak", "VmRSS": "resident_memory",
			"RssAnon": "resident_memory_anon", "RssFile": "resident_memory_file", "RssShmem": "resident_memory_shared",
		}[key]
		if name != "" {
			kib, _ := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 64)
			values["process_"+name+"_bytes"] = kib * 1024
		}
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		values["process_open_fds"] = float64(len(fds))
	}
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		values["process_max_fds"] = float64(limit.Cur)
	}
	return values
}
