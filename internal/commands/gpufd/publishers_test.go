package gpufd

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
	"github.com/gpufd/gpufd/weights"
)

// offers makes the directory of offers of a user whose keeper is the default one.
func (u *user) offers() string {
	u.env = append(u.env, "GPUFD_SOCKET=", "NVIDIA_DRA_LOCAL_IPC_DIR=")
	dir := filepath.Join(u.dir, "gpufd", "offers")
	require.NoError(u.t, os.MkdirAll(dir, 0o700))
	return dir
}

// placeOf is where the publisher of a name listens in that directory.
func placeOf(dir, offer string) string {
	return filepath.Join(dir, strings.ReplaceAll(offer, "@", "%40")+".sock")
}

// publish makes a publisher of weights in that directory, until the test's end.
func publish(t *testing.T, dir, name string, c *cu.Context, slots int) (path string) {
	t.Helper()
	path = placeOf(dir, weights.OfferName(name, c.Device().UUID()))
	publishAt(t, path, name, c, slots)
	return path
}

func publishAt(t *testing.T, path, name string, c *cu.Context, slots int) {
	t.Helper()
	srv := ok(share.Listen(path, nil))(t)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	w := ok(channel.NewWriter(t.Context(), c, srv, weights.OfferName(name, c.Device().UUID()), slots, 1<<20, channel.WithAnyOrder()))(t)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
}

// offerOther offers what is no publisher, under names like those of publishers.
func offerOther(t *testing.T, dir string, c *cu.Context) {
	t.Helper()
	buf := ok(vmm.New(c.Device(), 4096))(t)
	t.Cleanup(func() { require.NoError(t, buf.Close()) })
	offer := weights.OfferName("memory", c.Device().UUID())
	srv := ok(share.Listen(placeOf(dir, offer), nil))(t)
	t.Cleanup(func() { require.NoError(t, srv.Close()) })
	_ = ok(srv.Offer(offer, buf, nil))(t)

	elsewhere := weights.OfferName("elsewhere", cu.UUID{1})
	far := ok(share.Listen(placeOf(dir, elsewhere), nil))(t)
	t.Cleanup(func() { require.NoError(t, far.Close()) })
	w := ok(channel.NewWriter(t.Context(), c, far, elsewhere, 2, 64))(t)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
}

// Publishers are listed with their GPU, process, buckets and subscribers, before what a keeper keeps and without a keeper, too. Dead ones
// and what is no publisher are left out.
func TestPublishersAreListed(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	dir := u.offers()
	c := cutest.Context(t, cutest.Device(t))
	path := publish(t, dir, "policy", c, 4)
	publish(t, dir, "actor", c, 1)
	publish(t, dir, "run@7", c, 2)

	offer := weights.OfferName("policy", c.Device().UUID())
	r := ok(channel.Open(t.Context(), path, offer, c))(t)
	defer func() { require.NoError(t, r.Close()) }()
	pid := os.Getpid()
	want := map[string]any{"event": "publisher", "name": "policy", "device": c.Device().UUID().String(), "pid": float64(pid), "answers": true,
		"buckets": 4.0, "bucket_bytes": float64(1 << 20), "subscribers": 1.0, "socket": path}

	fd := ok(unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0))(t)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrUnix{Name: placeOf(dir, weights.OfferName("dead", cu.UUID{1}))}))
	require.NoError(t, unix.Close(fd))
	silence(t, filepath.Join(dir, "silent%40x.sock")) // no publisher: nobody asks it
	offerOther(t, dir, c)

	text := u.does("ls", "--timeout", "1h")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	require.Len(t, lines, 4, text)
	require.Regexp(t, fmt.Sprintf(`^actor +GPU-[0-9a-f-]{36} +%d +1 x 1 MiB +0$`, pid), lines[1])
	require.Regexp(t, fmt.Sprintf(`^policy +GPU-[0-9a-f-]{36} +%d +4 x 1 MiB +1$`, pid), lines[2])
	require.Regexp(t, fmt.Sprintf(`^run@7 +GPU-[0-9a-f-]{36} +%d +2 x 1 MiB +0$`, pid), lines[3])
	lines = strings.Split(strings.TrimSpace(u.does("ls", "--json", "--timeout", "1h")), "\n")
	require.Len(t, lines, 3)
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[1]), &got))
	require.Equal(t, want, got)

	u.keeper()
	u.write("a", data(1000, 1))
	u.does("put", "w", "a")
	text = u.does("ls", "--timeout", "1h")
	require.Regexp(t, `(?s)^PUBLISHER.*\nactor .*\npolicy [^\n]*\nrun@7 [^\n]*\nNAME.*\nw [^\n]*\n$`, text)
}

// silence listens at a socket and answers nobody, as a stopped process does.
func silence(t *testing.T, path string) {
	t.Helper()
	l := ok(sock.Listen(path))(t)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
}

// Publishers that do not answer are listed as such, and waited for side by side.
func TestPublishersThatDoNotAnswer(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	dir := u.offers()
	const many = 60
	for i := range many {
		silence(t, placeOf(dir, weights.OfferName(fmt.Sprintf("p%02d", i), cu.UUID{1, 2})))
	}
	begin := time.Now()
	text := u.does("ls")
	require.Less(t, time.Since(begin), many/2*time.Second)
	require.Regexp(t, fmt.Sprintf(`(?m)^p00 +GPU-01020000-0000-0000-0000-000000000000 +%d +does not answer$`, os.Getpid()), text)
	require.Equal(t, many, strings.Count(text, "does not answer"))
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(strings.SplitAfter(u.does("ls", "--json", "--timeout", "1s"), "\n")[0]), &got))
	require.Equal(t, map[string]any{"event": "publisher", "name": "p00", "device": cu.UUID{1, 2}.String(), "pid": float64(os.Getpid()), "answers": false,
		"socket": placeOf(dir, weights.OfferName("p00", cu.UUID{1, 2}))}, got)
}

// A keeper that has ended or does not answer keeps no publisher from being listed first.
func TestPublishersBesideAnEndedKeeper(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	publish(t, u.offers(), "policy", cutest.Context(t, cutest.Device(t)), 2)
	_, _ = u.keeper().stop(syscall.SIGKILL) // its fd store goes on
	r := u.start("ls", "--timeout", "1h")
	for _, want := range []string{"PUBLISHER", "policy"} {
		require.Contains(t, ok(r.lines.ReadString('\n'))(t), want, r.err.String())
	}
	_, _ = r.stop(syscall.SIGTERM)
	code, _, errs := u.run("ls", "--timeout", briefly)
	require.Equal(t, 4, code)
	require.Contains(t, errs, "the keeper does not answer")
}

// A publisher with a socket of its own is listed by that, and no keeper is missed there.
func TestPublisherWithItsOwnSocket(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	publishAt(t, filepath.Join(u.dir, "own.sock"), "policy", cutest.Context(t, cutest.Device(t)), 3)
	require.Regexp(t, `(?m)^policy .* 3 x 1 MiB +0$`, u.does("ls", "--socket", "own.sock", "--timeout", "1h"))
}

// ls waits for nobody who is not there. A keeper that was named has to be there, also where there are publishers.
func TestNothingToList(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	u.fails(1, "no publishers, no keeper: "+u.dir+"/s: nobody is listening there; start a keeper", "ls", "--timeout", "1h")
	publish(t, u.offers(), "policy", cutest.Context(t, cutest.Device(t)), 2)
	u.fails(1, "start a keeper", "ls", "--socket", "nobody", "--timeout", "1h")
	u.fails(2, "ls lists everything", "ls", "policy")
}

// A directory that cannot be read is named: nobody knows who publishes there.
func TestPublishersThatNobodySees(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	dir := u.offers()
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.WriteFile(dir, nil, 0o600))
	code, _, errs := u.run("ls", "--timeout", "1h")
	require.Equal(t, 1, code)
	require.Regexp(t, `^gpufd ls: the publishers in the default directory are not listed: .*/offers: not a directory\ngpufd ls: no publishers, no keeper: `, errs)
}
