package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// listedBy is what List says, without an error.
func listedBy(t testing.TB, srv *Server) []Listing {
	t.Helper()
	return ok(List(soon(t), srv.Path(), nil))(t)
}

// A list says of each offer what Attach would find, in the order of their names.
func TestList(t *testing.T) {
	dev, ctx, srv := listening(t)
	expect(srv, "expected")
	require.Empty(t, listedBy(t, srv))

	buf, m := newBuffer(t, ctx, 5), newLegacy(t, ctx, 4096)
	serveAs(t, srv, "weights", buf, cu.ReadOnly, OfferOptions{Data: []byte("sixteen bytes...")})
	s := newServed(srv)
	s.start(t, "old", func(ctx context.Context) error { return offerLegacyFor(ctx, srv, "old", m) })
	p, _ := prepared(t, srv, "made", buf, cu.ReadWrite)
	d := buf.Describe()
	want := []Listing{
		{Name: "made", Driver: d.Kind, Device: dev.UUID(), Access: cu.ReadWrite, Size: 5, Generation: d.Generation, Pending: true},
		{Name: "old", Driver: d.Kind, Device: dev.UUID(), Legacy: true, Access: cu.ReadWrite, Size: 4096, Generation: m.Generation()},
		{Name: "weights", Driver: d.Kind, Device: dev.UUID(), Access: cu.ReadOnly, Size: 5, Generation: d.Generation, DataSize: 16},
	}
	require.Equal(t, want, listedBy(t, srv))
	require.NoError(t, p.Close())
	s.stop(t)
	require.Equal(t, want[2:], listedBy(t, srv))
	next := newBuffer(t, ctx, 6)
	r := newServed(srv)
	r.start(t, "weights", func(ctx context.Context) error { return replaceFor(ctx, srv, "weights", next, cu.ReadOnly) })
	require.Eventually(t, func() bool { all := listedBy(t, srv); return len(all) == 1 && all[0].Size == 6 }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return connections(srv) == 0 }, 10*time.Second, time.Millisecond)
}

// A list counts the leases that there are now.
func TestListCountsLeases(t *testing.T) {
	dev, ctx, srv := listening(t)
	serveAs(t, srv, "weights", newBuffer(t, ctx, 5), cu.ReadOnly, OfferOptions{Slots: 5})
	for n := range 3 {
		require.Equal(t, n, listedBy(t, srv)[0].Leases)
		att := ok(Attach(soon(t), srv.Path(), "weights", dev, nil))(t)
		defer func() {
			require.NoError(t, att.Close())
			require.Eventually(t, func() bool { return listedBy(t, srv)[0].Leases == n }, 10*time.Second, time.Millisecond)
		}()
	}
	require.Equal(t, 3, listedBy(t, srv)[0].Leases)
	require.Equal(t, 5, listedBy(t, srv)[0].Slots)
}

// Its caller learns whom List asks, also if no answer comes.
func TestListTellsWhomItAsks(t *testing.T) {
	_, ctx, srv := listening(t)
	serveAs(t, srv, "weights", newBuffer(t, ctx, 5), cu.ReadOnly)
	silent := impostor(t, func(conn *sock.Conn) { _ = conn.WaitClose(soon(t)) })
	for path, c := range map[string]struct {
		within time.Duration
		want   error
	}{srv.Path(): {0, nil}, silent: {brief, ErrTimeout}} {
		var asked sock.Peer
		_, err := List(soon(t), path, &ListOptions{Timeout: c.within, OnConnected: func(p sock.Peer) { asked = p }})
		require.ErrorIs(t, err, c.want)
		require.EqualValues(t, os.Getpid(), asked.PID)
	}
}

// A list of many offers comes in many records, and is bounded.
func TestListOfManyOffers(t *testing.T) {
	var list []wire.Listing
	for i := range maxListed {
		list = append(list, wire.Listing{Name: fmt.Sprintf("%04d %0250d", i, i)[:4+i%252], Driver: cutest.Kind(), Handle: wire.HandleFD, Access: cu.ReadOnly, Size: 1, Generation: 1})
	}
	lists := func(list []wire.Listing) (path string) {
		var records []lie
		for _, m := range wire.Lists(list) {
			records = append(records, lie{record: wire.Encode(m)})
		}
		return impostor(t, tell(t, records...))
	}
	all := ok(List(soon(t), lists(list), nil))(t)
	require.Len(t, all, maxListed)
	for i, l := range all {
		require.Equal(t, fmt.Sprintf("%04d", i), l.Name[:4])
		require.Equal(t, -1, l.Leases, "an older producer does not say")
	}
	_, err := List(soon(t), lists(append(list, list[0])), nil)
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "4097 offers; want 4096 at most")
}

// addOffers offers a file under each name, until the server's end.
func addOffers(t *testing.T, srv *Server, names ...string) {
	t.Helper()
	f := ok(descriptor.Sealed("one for all", nil))(t)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	memory := vmm.Descriptor{Kind: cutest.Kind(), Size: 1, Granularity: 4096, ChunkSize: 4096, Chunks: 1, Generation: 1}
	for _, name := range names {
		_ = ok(offerFiles(srv, name, memory, []*os.File{f}, cu.ReadOnly))(t)
	}
}

// A peer does not hear of offers that the application does not let it read, neither by a list nor
// when it asks for the only offer.
func TestListNamesWhatThePeerMayHave(t *testing.T) {
	dev, ctx := leavesNothing(t)
	door := doorkeeper{}
	srv := listen(t, ListenOptions{Authorize: func(p sock.Peer, o OfferInfo) error {
		if o.Name == "secret" {
			return errSecret
		}
		return door.authorize(p, o)
	}})
	buf := newBuffer(t, ctx, 1)
	for _, name := range []string{"secret", "b", "a"} {
		serveAs(t, srv, name, buf, cu.ReadWrite)
	}
	all := listedBy(t, srv)
	require.Len(t, all, 2)
	require.Equal(t, "a b", all[0].Name+" "+all[1].Name)
	require.Len(t, door.all(), 2)
	require.Zero(t, door.all()[0].Access, "a list gives none")

	var no *serve.RefusalError
	require.ErrorAs(t, errOf(Attach(soon(t), srv.Path(), "", dev, nil)), &no)
	require.Equal(t, "there is not exactly one offer here; ask for one by its name", no.Text)
	require.Len(t, door.all(), 2, "there is no offer to be asked about")
}

// List says why there is no list: the producer has no place left, does not admit this process, or
// is older than lists, or the reason is on this side.
func TestListIsRefused(t *testing.T) {
	srv := listen(t, ListenOptions{MaxConnections: 1})
	expect(srv, "data")
	conn := dialed(t, srv)
	require.Eventually(t, func() bool { return connections(srv) == 1 }, 10*time.Second, time.Millisecond)
	for path, code := range map[string]wire.RefusalCode{
		srv.Path():              wire.RefusedBusy,
		refusing(t, turnedAway): wire.RefusedPolicy,
		refusing(t, wire.Refuse{Code: wire.RefusedUnsupported, Text: "records of type 12"}): wire.RefusedUnsupported,
	} {
		_, err := List(soon(t), path, nil)
		var no *serve.RefusalError
		require.ErrorAs(t, err, &no)
		require.Equal(t, code, no.Code)
		require.Equal(t, code == wire.RefusedUnsupported, errors.Is(err, ErrUnsupported))
	}
	require.NoError(t, conn.Close())
	require.ErrorIs(t, errOf(List(soon(t), filepath.Join(t.TempDir(), "s"), nil)), sock.ErrNoListener)
	over, cancel := context.WithCancel(soon(t))
	cancel()
	require.ErrorIs(t, errOf(List(over, srv.Path(), nil)), context.Canceled)
}

// refusing is a producer that says that.
func refusing(t *testing.T, no wire.Refuse) (path string) {
	return impostor(t, func(conn *sock.Conn) { _ = conn.Send(soon(t), wire.Encode(no)) })
}

// The answer of a lying or broken producer costs the caller of List an error. (FuzzList makes up
// more of them.)
func TestListsThatLie(t *testing.T) {
	record := func(m wire.Message) lie { return lie{record: wire.Encode(m)} }
	two := wire.Listed{Left: 1, Offers: []wire.Listing{{Name: "n", Access: cu.ReadOnly}}}
	var many []lie
	for left := maxListed - 1; left >= 0; left-- {
		many = append(many, record(wire.Listed{Left: left, Offers: two.Offers}))
	}
	for name, c := range map[string]struct {
		lies []lie
		peer func(*serve.PeerOptions)
		want error
	}{
		"half of it":               {[]lie{record(two)}, nil, sock.ErrPeerLost},
		"the same again":           {[]lie{record(two), record(two)}, nil, wire.ErrMalformed},
		"more than there can be":   {[]lie{record(wire.Listed{Left: 1<<32 - 1, Offers: two.Offers})}, nil, ErrTooLarge},
		"4,096 records":            {many, withRate(100), serve.ErrRate},
		"4,096 records, and taken": {many, withRate(0), nil},
		"progress":                 {[]lie{record(wire.Progress{Done: 1, Total: 2})}, nil, serve.ErrUnexpected},
		"what it need not know":    {[]lie{record(wire.Unknown{Kind: 0x7f00}), record(wire.Listed{})}, nil, nil},
	} {
		path := impostor(t, func(conn *sock.Conn) {
			for _, l := range c.lies {
				_ = conn.Send(soon(t), l.record)
			}
		})
		all, err := List(soon(t), path, &ListOptions{peer: c.peer})
		require.ErrorIs(t, err, c.want, name)
		require.True(t, err == nil || all == nil, name)
	}
}

// A producer that lists for ever, or says nothing, has no more than the time of a step.
func TestFault81_ListThatDoesNotEnd(t *testing.T) {
	one := []wire.Listing{{Name: "n", Access: cu.ReadOnly}}
	for name, record := range map[string]func(left int) []byte{
		"silent":       nil,
		"ignorable":    func(int) []byte { return wire.Encode(wire.Unknown{Kind: 0x7f00}) },
		"offer by one": func(left int) []byte { return wire.Encode(wire.Listed{Left: left, Offers: one}) },
	} {
		t.Run(name, func(t *testing.T) {
			over := soon(t)
			path := impostor(t, func(conn *sock.Conn) {
				for left := maxListed - 1; record != nil && conn.Send(over, record(left)) == nil; left-- {
					time.Sleep(brief / 10)
				}
				_ = conn.WaitClose(over)
			})
			require.ErrorIs(t, errOf(List(soon(t), path, &ListOptions{Timeout: brief})), ErrTimeout)
		})
	}
}

// A consumer that asks for a list and does not read it fast enough has its place for the time of a
// step, and keeps nobody else waiting.
func TestListThatIsNotRead(t *testing.T) {
	_, ctx, srv := listening(t, ListenOptions{Timeout: brief})
	s := put(t, srv, newBuffer(t, ctx, 1))
	names := make([]string, maxListed)
	for i := range names {
		names[i] = fmt.Sprintf("%0255d", i)
	}
	addOffers(t, srv, names...)
	conn := dialed(t, srv)
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.List{})))
	for len(s.of(PeerRefused)) == 0 {
		require.Empty(t, leasesAs(srv, "data")) // it has the server's lock
		require.IsType(t, wire.Listed{}, heard(t, conn))
		time.Sleep(brief / 100)
	}
	require.ErrorIs(t, s.await(t, PeerRefused, 1).Err, ErrTimeout)
	require.NoError(t, conn.Close())
	require.Eventually(t, func() bool { return connections(srv) == 0 }, 10*time.Second, time.Millisecond)
}

// Records of a producer that is asked for a list, by number after actHonest.
const (
	listNothing = actHonest + iota
	listOne
	listTwoOfThree
	listTheRest
	listProgress
	listRefuse
	listIgnorable
)

// FuzzList makes a producer say anything, with files, to a consumer that asks it for a list.
// Invariant 2: List ends, keeps no descriptor, and returns no more than it takes, or an
// error.
func FuzzList(f *testing.F) {
	l, err := sock.Listen(socketPath(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = l.Close() })
	one := wire.Listing{Name: "weights", Access: cu.ReadOnly, Handle: wire.HandleFD, Size: 1, Generation: 2}
	two := []wire.Listing{one, one}
	says := []wire.Message{
		wire.Listed{}, wire.Listed{Offers: two[:1]}, wire.Listed{Left: 1, Offers: two}, wire.Listed{Offers: two[:1]},
		wire.Progress{Done: 1, Total: 2}, wire.Refuse{Code: wire.RefusedBusy, Text: "no"}, wire.Unknown{Kind: 0x7f00},
	}
	for _, seed := range [][]byte{
		nil, act(listNothing), act(listOne), slices.Concat(act(listTwoOfThree), act(listTheRest)), act(listTwoOfThree),
		slices.Concat(act(listTwoOfThree), act(listTwoOfThree)), slices.Concat(act(listTwoOfThree), act(listNothing)),
		act(listProgress), act(listRefuse), slices.Concat(act(listIgnorable), act(listOne)), act(listOne, 0),
		slices.Concat(flawed(16, 9), act(listOne)), slices.Concat(flawed(20, 9), act(listOne)), slices.Concat(flawed(24, 0), act(listOne)),
	} {
		f.Add(seed)
	}
	for _, v := range recordsOfVectors(f) {
		f.Add(raw(v))
	}
	files := odds(f)
	before := settledDescriptors(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		over := make(chan error, 1)
		go func() { over <- produce(ctx, l, &script{b, says, files}) }()
		all, err := List(ctx, l.Path(), nil)
		switch {
		case ctx.Err() != nil:
			t.Fatalf("List does not end: %v", err)
		case len(all) > maxListed, err != nil && all != nil:
			t.Fatalf("%d offers, %v", len(all), err)
		}
		if err := <-over; err != nil {
			t.Fatal(err)
		}
		requireDescriptors(t, before)
	})
}
