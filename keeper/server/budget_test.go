package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
	"github.com/gpufd/gpufd/keeper"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// shipped returns the limits of memory that deploy/ gives a keeper.
func shipped(t *testing.T) map[string]uint64 {
	limits := map[string]uint64{}
	for path, pattern := range map[string]string{
		"kubernetes/pod/deployment.yaml":      `(?s)- name: keeper\n.*?limits: \{memory: (\d+)Mi\}`,
		"kubernetes/daemonset/daemonset.yaml": `(?s)- name: keeper\n.*?limits: \{memory: (\d+)Mi\}`,
		"systemd/gpufd-keeper.service":        `MemoryMax=(\d+)M\n`,
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "deploy", path))
		if errors.Is(err, os.ErrNotExist) {
			t.Skip("takes the sources of gpufd")
		}
		require.NoError(t, err)
		found := regexp.MustCompile(pattern).FindSubmatch(text)
		require.NotNil(t, found, path)
		n := ok(strconv.ParseUint(string(found[1]), 10, 64))(t)
		limits[path] = n << 20
	}
	return limits
}

// All that others can make a keeper take at once fits the limits that deploy/ ships, and the
// numbers are those of docs/security.md.
func TestBudgetFitsWhatIsShipped(t *testing.T) {
	for path, limit := range shipped(t) {
		b := budgetFor(limit)
		require.LessOrEqual(t, b.most(), limit*9/10, "%s: %+v", path, b)
	}
	text := ok(os.ReadFile("../../docs/security.md"))(t)
	row := func(what string, of func(b budget) uint64) string {
		mib := func(limit uint64) string { return fmt.Sprintf("%.1f", float64(of(budgetFor(limit)))/(1<<20)) }
		return fmt.Sprintf("| %s | %s | %s |", what, mib(128<<20), mib(256<<20))
	}
	for _, line := range []string{
		row("requests that have begun", func(b budget) uint64 { return b.requests }),
		row("answers that are being sent", func(b budget) uint64 { return b.answers }),
		row("the manifest: names, versions, bookings, holders", func(b budget) uint64 { return b.manifest }),
		row("tables", func(b budget) uint64 { return b.tables }),
		row("**all that it can take**", budget.most),
	} {
		require.Contains(t, string(text), line)
	}
}

func TestPool(t *testing.T) {
	p := newPool("cups", 800, 1)
	require.NoError(t, p.Take(2, 350))
	require.ErrorContains(t, p.Take(2, 1), "the keeper has 350 bytes of cups of uid 2, and takes 350 of it now")
	require.NoError(t, p.Take(3, 175))
	require.Error(t, p.Take(3, 1))
	require.NoError(t, p.Take(1, 275))
	requireCode(t, codeBusy, p.Take(1, 1))
	p.Leave(2, 350)
	require.NoError(t, p.Take(1, 350))
	p.Leave(1, 625)
	p.Leave(3, 175)
	require.Empty(t, p.of)
	require.Zero(t, p.taken)
}

// limitTo sets the limit of memory that keepers find which are opened from now on.
func limitTo(t *testing.T, limit uint64) {
	before := memoryLimit
	memoryLimit = func() (uint64, bool) { return limit, true }
	t.Cleanup(func() { memoryLimit = before })
}

// With 128 MiB a keeper keeps a table of 100,000 tensors for its own user; a second one
// does not fit beside it, and a user that is not the keeper's has half.
func TestLargeTable(t *testing.T) {
	limitTo(t, 128<<20)
	s, c, dev := kept(t)
	table := json.RawMessage(`"` + strings.Repeat("a", 10_000_000) + `"`)
	p := part(0, dev, 1)
	p.Table = table
	_, err := c.Put(soon(t), keeper.Put{Name: "w"}, p)
	require.NoError(t, err)
	all := attach(t, c, dev, "w")
	require.Equal(t, len(table), len(all[0].Data.Table))
	_, err = c.Put(soon(t), keeper.Put{Name: "w"}, p)
	require.ErrorContains(t, err, "the keeper has no memory for that table, or")
	requireCode(t, "quota", err)
	letGoOf(t, all)
	require.NoError(t, c.Remove(soon(t), "w"))
	eventuallyPut(t, c, p)
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NoError(t, s.state.MayBring("w", s.self(), 1000, 0))
	require.Zero(t, s.tables.taken, "what is kept counts in the state")
}

func eventuallyPut(t *testing.T, c *client, p keeper.Part) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := c.Put(soon(t), keeper.Put{Name: "w"}, p)
		return err == nil
	}, waitLong, waitStep)
}

// Tables that were brought and not delivered count, and are given back with their connection.
func TestTablesThatAreNotDelivered(t *testing.T) {
	limitTo(t, 128<<20)
	s, _, dev := kept(t)
	table := ok(descriptor.Sealed("table", []byte(`"`+strings.Repeat("a", 8<<20)+`"`)))(t)
	sparse := sparseTable(t, 60<<20)
	defer func() { require.NoError(t, errors.Join(table.Close(), sparse.Close())) }()
	hoarder := ok(dial(soon(t), s.opts.Socket))(t)
	first := bookingOf(t, hoarder, dev, small)
	second := ok(hoarder.book(soon(t), keeper.Put{Name: "other", Parts: 1}, part(0, dev, 1), "other"))(t)
	_, err := hoarder.conn().Ask(soon(t), protocol.Request{Op: protocol.OpTable, Ticket: first.Ticket}, sparse)
	requireCode(t, "quota", err)
	require.NoError(t, errOf(hoarder.conn().Ask(soon(t), protocol.Request{Op: protocol.OpTable, Ticket: first.Ticket}, table)))
	_, err = hoarder.conn().Ask(soon(t), protocol.Request{Op: protocol.OpTable, Ticket: second.Ticket}, table)
	requireCode(t, "quota", err)
	require.NoError(t, hoarder.Close())
	require.Eventually(t, func() bool { return s.tables.used(s.self().UID) == 0 }, waitLong, waitStep)
}

// sparseTable is a sealed memfd of holes.
func sparseTable(t *testing.T, size int64) *os.File {
	fd := ok(unix.MemfdCreate("table", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING))(t)
	f := fdtrace.File(fd, "table")
	require.NoError(t, f.Truncate(size))
	require.NoError(t, errOf(unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, descriptor.Content)))
	return f
}

// Requests that do not end are bounded: the connection is told and cut, and others are served.
func TestRequestsThatDoNotEnd(t *testing.T) {
	limitTo(t, 128<<20)
	s, c, _ := kept(t)
	require.NoError(t, errOf(c.Status(soon(t))))
	piece := append([]byte{protocol.PieceMore}, []byte(strings.Repeat(" ", protocol.MaxPiece))...)
	cut := 0
	for range 60 {
		conn, err := sock.Dial(soon(t), s.opts.Socket+protocol.ControlSuffix)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		for err == nil {
			if err = conn.Send(soon(t), piece); err == nil && s.requests.used(s.self().UID) > s.budget.requests-2*protocol.MaxPiece {
				break
			}
		}
		if err != nil {
			cut++
		}
		s.requests.mu.Lock()
		require.LessOrEqual(t, s.requests.taken, s.budget.requests)
		s.requests.mu.Unlock()
	}
	require.Positive(t, cut)
	_, err := c.Stat(soon(t), "w")
	requireCode(t, "not-found", err)
}

// A list comes piece by piece, each name once, and takes memory for no more than a few of them.
func TestLongList(t *testing.T) {
	s, c, dev := kept(t)
	labels := map[string]string{}
	for i := range 10 {
		labels[strconv.Itoa(i)] = strings.Repeat("<", state.MaxLabelValue)
	}
	const names = 30 // of 16 KiB each, as JSON
	for i := range names {
		require.NoError(t, errOf(c.Put(soon(t), keeper.Put{Name: fmt.Sprintf("n%02d", i), Labels: labels}, part(0, dev, 1))))
	}
	s.answers.mu.Lock()
	s.answers.most = 160 << 10
	s.answers.mu.Unlock()
	all := ok(c.List(soon(t)))(t)
	require.Len(t, all, names)
	for i, n := range all {
		require.Equal(t, fmt.Sprintf("n%02d", i), n.Name)
		require.Equal(t, labels, n.Labels)
	}
	require.Eventually(t, func() bool { return s.answers.used(s.self().UID) == 0 }, waitLong, waitStep)
	require.NoError(t, s.answers.Take(s.self().UID, 160<<10))
	_, err := c.Stat(soon(t), "n00")
	requireCode(t, codeBusy, err)
	s.answers.Leave(s.self().UID, 160<<10)
	require.NoError(t, errOf(c.Stat(soon(t), "n00")))
}

// The descriptors of a pool are not for what is kept besides, but some always are.
func TestDescriptorsOfAPool(t *testing.T) {
	var b budget
	without := b.bounds(0).Files
	require.Equal(t, without-256, b.bounds(128).Files)
	require.Equal(t, without/3, b.bounds(1<<30).Files)
	require.Equal(t, 64, chunksFor(64*granule))
	require.Zero(t, chunksFor(0))
}
