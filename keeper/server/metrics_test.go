package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// scraped returns what a keeper tells Prometheus, without the process's own metrics.
func scraped(s *Server) map[string]string {
	var b bytes.Buffer
	s.metrics.write(&b)
	all := map[string]string{}
	for line := range strings.Lines(b.String()) {
		if i := strings.LastIndexByte(line, ' '); strings.HasPrefix(line, "gpufd_") {
			all[line[:i]] = strings.TrimSpace(line[i:])
		}
	}
	return all
}

// These are above zero in every process; an emulator shows some others as zero.
func TestMetricsOfTheProcess(t *testing.T) {
	values := processMetrics()
	for _, name := range []string{"start_time_seconds", "resident_memory_bytes", "virtual_memory_bytes", "open_fds", "max_fds"} {
		require.Positive(t, values["process_"+name], name)
	}
}

// Counts are there after a restart, in order or not, and refusals count once however many
// names there are.
func TestCountsOutliveAKeeper(t *testing.T) {
	s, c, dev := kept(t)
	for _, name := range []string{"a", "b", "c"} {
		put(t, c, dev, name, 1)
	}
	attach(t, c, dev, "a")
	require.ErrorIs(t, errOf(share.Attach(soon(t), s.opts.Socket, "nothing", dev, nil)), share.ErrRefused)
	require.NoError(t, c.Drain(soon(t), "a"))
	require.ErrorIs(t, errOf(share.Attach(soon(t), s.opts.Socket, "a", dev, nil)), share.ErrRefused)
	_, err := c.Stat(soon(t), "nothing")
	requireCode(t, "not-found", err)
	want := map[string]string{
		"gpufd_keeper_commits_total":                                           "3",
		"gpufd_keeper_attach_seconds_count":                                    "1",
		`gpufd_keeper_attach_seconds_bucket{le="+Inf"}`:                        "1",
		`gpufd_keeper_refusals_total{socket="readers",reason="no such offer"}`: "1",
		`gpufd_keeper_refusals_total{socket="readers",reason="draining"}`:      "1",
		`gpufd_keeper_refusals_total{socket="control",reason="not-found"}`:     "1",
	}
	requireCounts := func(s *Server) {
		t.Helper()
		require.Eventually(t, func() bool {
			got := scraped(s)
			for name, n := range want {
				if got[name] != n {
					return false
				}
			}
			return true
		}, waitLong, waitStep, "%s", lazily(func() string { return fmt.Sprint(scraped(s)) }))
	}
	requireCounts(s)
	require.NotZero(t, scraped(s)["gpufd_keeper_attach_seconds_sum"])
	require.NoError(t, s.Close())
	s = opened(t, s.opts)
	requireCounts(s)
	require.Eventually(t, func() bool { // by itself, without a change of what is kept
		m, err := manifestOf(s)
		return err == nil && bytes.Contains(m, []byte(`"refused/control/not-found":1`)) && !s.metrics.changed()
	}, waitLong, waitStep)
}

// Each byte has one state.
func TestBytesByState(t *testing.T) {
	s, c, dev := kept(t)
	for i, name := range []string{"good", "odd", "gone", "draining"} {
		require.NoError(t, errOf(c.Put(soon(t), keeper.Put{Name: name, Parts: 2}, part(0, dev, byte(i)), part(1, dev, byte(i)))))
	}
	attach(t, c, dev, "gone")
	for i, verdict := range []string{"damaged", "quarantined"} {
		require.NoError(t, errOf(c.Report(soon(t), "odd", 1, i, verdict, "a test")))
	}
	require.NoError(t, c.Drain(soon(t), "draining"))
	bookingOf(t, c, dev, 3*small)
	put(t, c, dev, "gone", 9)
	require.Eventually(t, func() bool { return scraped(s)[`gpufd_keeper_leases`] == "2" }, waitLong, waitStep)
	got := scraped(s)
	for is, n := range map[string]int{"ok": 3, "damaged": 1, "quarantined": 1, "draining": 2, "retired": 2, "reserved": 3} {
		require.Equal(t, fmt.Sprint(n*small), got[`gpufd_keeper_bytes{state="`+is+`"}`], is)
	}
	require.NoError(t, s.Close())
	opts := options(s.opts.Socket)
	opts.Policy.Rules = []state.Rule{{UID: number(s.self().UID), Allow: []state.Right{}}}
	require.Equal(t, "5", scraped(opened(t, opts))["gpufd_keeper_names"], "also those that its own user may not list")
}

func manifestOf(s *Server) ([]byte, error) {
	hold(s)
	defer s.finish()
	return s.vault.store.Manifest(context.Background())
}

// A commit and its count are in one manifest; other counts come to the store in time.
func TestCountsAreSaved(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "a", 1)
	m := ok(manifestOf(s))(t)
	require.Contains(t, string(m), `"commits":1`)
	_, err := c.Stat(soon(t), "nothing")
	requireCode(t, "not-found", err)
	require.Eventually(t, func() bool {
		m, err := manifestOf(s)
		return err == nil && bytes.Contains(m, []byte(`"refused/control/not-found":1`))
	}, waitLong, waitStep)
	s.metrics.add(map[string]uint64{"of a later version": 3, `refused/x/"}`: 1})
	require.NotContains(t, fmt.Sprint(scraped(s)), "later")
	require.NoError(t, s.Close())
	require.Equal(t, uint64(3), opened(t, s.opts).metrics.all()["of a later version"])
}

// A process that has lost its lease is waited for until it has died, and that is counted.
func TestFenceWaits(t *testing.T) {
	s, c, dev := kept(t)
	put(t, c, dev, "a", 1)
	cmd := cutest.Child(soon(t), "deaf", socketEnv+"="+s.opts.Socket)
	cmd.Stderr = os.Stderr
	in := ok(cmd.StdinPipe())(t)
	require.NoError(t, cmd.Start())
	eventually(t, c, "a", func(i api.Info) bool { return len(i.Holders) == 1 })
	require.NoError(t, c.Remove(soon(t), "a"))
	require.Eventually(t, func() bool { return scraped(s)["gpufd_keeper_fences_awaited"] == "1" }, waitLong, waitStep)

	info := stat(t, c, "a")
	require.Equal(t, "removed", info.State)
	require.Len(t, info.Retired, 1)
	gone := info.Retired[0]
	require.True(t, gone.Gone, "the keeper keeps nothing for who was told to let go")
	require.Equal(t, uint64(small), gone.Bytes)
	require.Len(t, gone.Holders, 1)
	h := gone.Holders[0]
	require.Equal(t, []any{int32(cmd.Process.Pid), cu.ReadOnly, false, true}, []any{h.PID, h.Access, h.Fenced, h.Revoked})
	require.Equal(t, "0", scraped(s)["gpufd_keeper_leases"])
	require.NoError(t, s.Close())
	s = opened(t, s.opts)
	require.Equal(t, gone.Holders, stat(t, c, "a").Retired[0].Holders, "also behind a restart")
	require.Equal(t, "", scraped(s)["gpufd_keeper_fence_waits_total"])

	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	require.Eventually(t, func() bool {
		_, err := c.Stat(soon(t), "a")
		return err != nil
	}, waitLong, waitStep)
	require.Eventually(t, func() bool { return scraped(s)["gpufd_keeper_fence_waits_total"] == "1" }, waitLong, waitStep)
	require.NotEmpty(t, scraped(s)["gpufd_keeper_fence_wait_seconds_total"])
	require.Equal(t, "0", scraped(s)["gpufd_keeper_fences_awaited"])
}

func init() { children["deaf"] = deafReader }

// deafReader attaches to a, and keeps it mapped until its standard input ends.
func deafReader() error {
	cutest.ExpectLeaks()
	drv, err := cutest.Open()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := share.Attach(ctx, os.Getenv(socketEnv), "a", drv.Devices()[0], nil); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// A reader that was told to let go and comes back for the same version is one holder.
func TestRevokedReaderComesBack(t *testing.T) {
	_, c, dev := kept(t)
	put(t, c, dev, "a", 1)
	reader := attach(t, c, dev, "a")[0]
	eventually(t, c, "a", func(i api.Info) bool { return len(i.Holders) == 1 })
	require.NoError(t, errOf(c.Report(soon(t), "a", 1, 0, "quarantined", "")))
	<-reader.Done()
	eventually(t, c, "a", func(i api.Info) bool { return len(i.Holders) == 1 && i.Holders[0].Revoked })
	require.NoError(t, errOf(c.Report(soon(t), "a", 1, 0, "ok", "")))
	again := attach(t, c, dev, "a")
	eventually(t, c, "a", func(i api.Info) bool { return len(i.Holders) == 1 && !i.Holders[0].Revoked })
	letGoOf(t, again)
	eventually(t, c, "a", func(i api.Info) bool { return len(i.Holders) == 0 })
}

// The address is served, and a keeper that cannot start leaves nothing: no store, no
// socket. A store that was there before stays.
func TestMetricsAddress(t *testing.T) {
	busy := ok(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer busy.Close()
	opts := options(newSocket(t))
	for _, address := range []string{"nonsense", "127.0.0.1:99999", busy.Addr().String()} {
		opts.Metrics = address
		require.ErrorContains(t, errOf(Open(soon(t), opts)), "an address for metrics")
		require.ErrorIs(t, errOf(fdstore.Dial(soon(t), opts.Socket+storeSuffix)), sock.ErrNoListener)
		left := ok(filepath.Glob(opts.Socket + "*"))(t)
		require.Empty(t, left)
	}
	opts.Metrics = ""
	s := opened(t, opts)
	store := s.Status().Store
	require.NoError(t, s.Close())
	opts.Metrics = "nonsense"
	require.ErrorContains(t, errOf(Open(soon(t), opts)), "an address for metrics")
	opts.Metrics = "127.0.0.1:0"
	s = opened(t, opts)
	require.Equal(t, store, s.Status().Store)
}
