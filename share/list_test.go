package share

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// listedBy is what List says, without an error.
func listedBy(t testing.TB, srv *Server) []Listing {
	t.Helper()
	all := ok(List(soon(t), srv.Path()))(t)
	return all
}

// A list says of each offer what Attach would find, in the order of their names.
func TestList(t *testing.T) {
	dev, ctx, srv := listening(t)
	srv.Expect("expected")
	require.Empty(t, listedBy(t, srv))

	buf, m := newBuffer(t, ctx, 5), newLegacy(t, ctx, 4096)
	serveAs(t, srv, "weights", buf, ReadOnly, WithData([]byte("sixteen bytes...")))
	s := newServed(srv)
	s.start(t, "old", func(ctx context.Context) error { return srv.OfferLegacy(ctx, "old", m) })
	p, _ := prepared(t, srv, "made", buf, ReadWrite)
	d := buf.Describe()
	want := []Listing{
		{Name: "made", Driver: d.Kind, Device: dev.UUID(), Handle: HandleFD, Access: ReadWrite, Size: 5, Generation: d.Generation, Pending: true},
		{Name: "old", Driver: d.Kind, Device: dev.UUID(), Handle: HandleLegacy, Access: ReadWrite, Size: 4096, Generation: m.Generation()},
		{Name: "weights", Driver: d.Kind, Device: dev.UUID(), Handle: HandleFD, Access: ReadOnly, Size: 5, Generation: d.Generation, DataSize: 16},
	}
	require.Equal(t, want, listedBy(t, srv))
	require.NoError(t, p.Close())
	s.stop(t)
	require.Equal(t, want[2:], listedBy(t, srv))
	next := newBuffer(t, ctx, 6)
	r := newServed(srv)
	r.start(t, "weights", func(ctx context.Context) error { return srv.Replace(ctx, "weights", next, ReadOnly) })
	require.Eventually(t, func() bool { all := listedBy(t, srv); return len(all) == 1 && all[0].Size == 6 }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { return connections(srv) == 0 }, 10*time.Second, time.Millisecond)
}

// A list of many offers comes in many records, and is bounded.
func TestListOfManyOffers(t *testing.T) {
	leavesNothing(t)
	var list []wire.Listing
	for i := range MaxListed {
		list = append(list, wire.Listing{Name: fmt.Sprintf("%04d %0250d", i, i)[:4+i%252], Driver: cutest.Kind(), Handle: HandleFD, Access: ReadOnly, Size: 1, Generation: 1})
	}
	all := ok(List(soon(t), listing1(t, list)))(t)
	require.Len(t, all, MaxListed)
	for i, l := range all {
		require.Equal(t, fmt.Sprintf("%04d", i), l.Name[:4])
	}
	_, err := List(soon(t), listing1(t, append(list, list[0])))
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
		_ = ok(srv.OfferFiles(name, memory, []*os.File{f}, ReadOnly))(t)
	}
}

// listing1 lists to one peer.
func listing1(t *testing.T, list []wire.Listing) (path string) {
	t.Helper()
	l := ok(sock.Listen(socketPath(t)))(t)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	go func() {
		conn, err := l.Accept(soon(t))
		if err != nil {
			return
		}
		defer conn.Close()
		for _, m := range wire.Lists(list) {
			if conn.Send(soon(t), wire.Encode(m)) != nil {
				return
			}
		}
		_, _ = conn.Receive(soon(t)) // until it has gone
	}()
	return l.Path()
}

// A peer does not hear of offers that the application does not let it read, neither by a list nor
// when it asks for the only offer.
func TestListNamesWhatThePeerMayHave(t *testing.T) {
	dev, ctx := leavesNothing(t)
	door := doorkeeper{}
	srv := listen(t, WithAuthorize(func(p sock.Peer, o Offer) error {
		if o.Name == "secret" || p.PID != pid() {
			return errSecret
		}
		return door.authorize(p, o)
	}))
	buf := newBuffer(t, ctx, 1)
	serveAs(t, srv, "secret", buf, ReadWrite)
	require.Empty(t, listedBy(t, srv))
	for _, name := range []string{"b", "a"} {
		serveAs(t, srv, name, buf, ReadWrite, WithData([]byte("x")))
	}
	var names []string
	for _, l := range listedBy(t, srv) {
		names = append(names, l.Name)
	}
	require.Equal(t, []string{"a", "b"}, names)
	require.Len(t, door.all(), 2)
	require.Zero(t, door.all()[0].Access, "a list gives none")
	require.Equal(t, "x", string(door.all()[0].Data))

	_, err := Attach(soon(t), srv.Path(), "", dev)
	var no *RefusalError
	require.ErrorAs(t, err, &no)
	require.Equal(t, "there is not exactly one offer here; ask for one by its name", no.Text)
	require.Len(t, door.all(), 2, "there is no offer to be asked about")
}

// A consumer that asks for the only offer where there are several hears some of their names.
func TestOnlyOfferOfSeveral(t *testing.T) {
	dev, _ := leavesNothing(t)
	srv := listen(t)
	ask := func() string {
		_, err := Attach(soon(t), srv.Path(), "", dev)
		var no *RefusalError
		require.ErrorAs(t, err, &no)
		require.Equal(t, RefusedName, no.Code)
		return no.Text
	}
	srv.Expect("x")
	srv.Expect("y")
	require.Equal(t, "there is not exactly one offer here; ask for one by its name", ask())
	for i := range 10 {
		addOffers(t, srv, fmt.Sprintf("offer %d", 9-i))
	}
	const ten = `: "offer 0", "offer 1", "offer 2", "offer 3", "offer 4", "offer 5", "offer 6", "offer 7", "offer 8", "offer 9"`
	require.Equal(t, "there is not exactly one offer here; ask for one by its name"+ten, ask())
	addOffers(t, srv, "z", "zz")
	require.Equal(t, "there is not exactly one offer here; ask for one by its name"+ten+" and 2 more", ask())
}

// List says why there is no list: the producer has no place left, does not admit this process, or
// is older than lists, or the reason is on this side.
func TestListIsRefused(t *testing.T) {
	srv := listen(t, WithConnections(1))
	srv.Expect("data")
	conn := dialed(t, srv)
	require.Eventually(t, func() bool { return connections(srv) == 1 }, 10*time.Second, time.Millisecond)
	for path, code := range map[string]RefusalCode{
		srv.Path():              RefusedBusy,
		refusing(t, turnedAway): RefusedPolicy,
		refusing(t, wire.Refuse{Code: RefusedUnsupported, Text: "records of type 12"}): RefusedUnsupported,
	} {
		_, err := List(soon(t), path)
		var no *RefusalError
		require.ErrorAs(t, err, &no)
		require.Equal(t, code, no.Code)
		require.Equal(t, code == RefusedUnsupported, errors.Is(err, ErrUnsupported))
	}
	require.NoError(t, conn.Close())
	require.ErrorIs(t, errOf(List(soon(t), filepath.Join(t.TempDir(), "s"))), sock.ErrNoListener)
	require.ErrorContains(t, errOf(List(soon(t), srv.Path(), WithTimeout(0))), "WithTimeout")
	over, cancel := context.WithCancel(soon(t))
	cancel()
	require.ErrorIs(t, errOf(List(over, srv.Path(), nil)), context.Canceled)
}

// refusing is a producer that says that.
func refusing(t *testing.T, no wire.Refuse) (path string) {
	return impostor(t, func(conn *sock.Conn) { _ = conn.Send(soon(t), wire.Encode(no)) })
}

// The answer of a lying or broken producer costs the caller of List an error, and no more than the
// time of a step.
func TestListsThatLie(t *testing.T) {
	_, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	l := wire.Listing{Name: "n", Access: ReadOnly}
	record := func(m wire.Message) []lie { return []lie{{record: wire.Encode(m)}} }
	two := wire.Listed{Left: 1, Offers: []wire.Listing{l}}
	var many []lie
	for i := range MaxListed {
		many = append(many, lie{record: wire.Encode(wire.Listed{Left: MaxListed - 1 - i, Offers: []wire.Listing{l}})})
	}
	cases := map[string]struct {
		lies []lie
		opts []PeerOption
		want error
	}{
		"nothing, and gone":        {nil, nil, sock.ErrPeerLost},
		"half of it, and gone":     {record(two), nil, sock.ErrPeerLost},
		"the same again":           {append(record(two), record(two)...), nil, ErrWire},
		"fewer than it said":       {append(record(wire.Listed{Left: 2, Offers: two.Offers}), record(wire.Listed{Offers: two.Offers})...), nil, ErrWire},
		"more than are taken":      {record(wire.Listed{Left: MaxListed, Offers: two.Offers}), nil, ErrTooLarge},
		"more than there can be":   {record(wire.Listed{Left: 1<<32 - 1, Offers: two.Offers}), nil, ErrTooLarge},
		"4,096 records":            {many, nil, ErrRate},
		"4,096 records, and taken": {many, []PeerOption{WithRecordRate(0)}, nil},
		"an offer":                 {[]lie{tr.say(func(o *wire.Offer) { o.FDs = 1 }, tr.files[0])}, nil, errAny},
		"progress":                 {record(wire.Progress{Done: 1, Total: 2}), nil, ErrProtocol},
		"a list with a file":       {[]lie{{wire.Encode(wire.Listed{}), tr.files[:1]}}, nil, errAny},
		"a list of nothing":        {append(record(two), lie{record: wire.Encode(wire.Listed{Left: 1})}), nil, ErrWire},
		"a later version":          {[]lie{{record: flaw(two, 4, 2)}}, nil, ErrVersion},
		"what it need not know":    {append([]lie{{record: wire.Encode(wire.Unknown{Kind: 0x7f00})}}, record(wire.Listed{})...), nil, nil},
	}
	sideBySide(t, cases, func(t *testing.T, _ string, c struct {
		lies []lie
		opts []PeerOption
		want error
	}) {
		all, err := List(soon(t), impostor(t, func(conn *sock.Conn) {
			for _, l := range c.lies {
				if conn.Send(soon(t), l.record, l.files...) != nil {
					return
				}
			}
		}), c.opts...)
		if c.want == nil {
			require.NoError(t, err)
			return
		}
		require.Nil(t, all)
		require.Error(t, err)
		if c.want != errAny { // kernels that send no descriptors end the conversation
			require.ErrorIs(t, err, c.want)
		}
	})
}

var errAny = errors.New("any error")

// A producer that lists for ever, or says nothing, has no more than the time of a step.
func TestFault81_ListThatDoesNotEnd(t *testing.T) {
	for name, m := range map[string]wire.Message{
		"silent":       nil,
		"ignorable":    wire.Unknown{Kind: 0x7f00},
		"offer by one": wire.Listed{Left: MaxListed, Offers: []wire.Listing{{Name: "n", Access: ReadOnly}}},
	} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			path := impostor(t, func(conn *sock.Conn) {
				for left := MaxListed - 1; ; left-- {
					if l, ok := m.(wire.Listed); ok {
						m = wire.Listed{Left: left, Offers: l.Offers}
					}
					if m != nil && conn.Send(soon(t), wire.Encode(m)) != nil {
						return
					}
					select {
					case <-over:
						return
					case <-time.After(brief / 10):
					}
				}
			})
			require.ErrorIs(t, errOf(List(soon(t), path, WithTimeout(brief))), ErrTimeout)
			close(over)
		})
	}
}

// A consumer that asks for a list and does not read it, or not fast enough, has its place
// for the time of a step, and keeps nobody else waiting.
func TestListThatIsNotRead(t *testing.T) {
	_, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	for _, reads := range []bool{false, true} {
		srv := listen(t, WithTimeout(brief))
		s := put(t, srv, buf)
		names := make([]string, MaxListed)
		for i := range names {
			names[i] = fmt.Sprintf("%0255d", i)
		}
		addOffers(t, srv, names...)
		conn := dialed(t, srv)
		require.NoError(t, conn.Send(soon(t), wire.Encode(wire.List{})))
		for len(s.of(PeerRefused)) == 0 {
			require.Empty(t, srv.Leases("data")) // it has the server's lock
			if reads {
				require.IsType(t, wire.Listed{}, heard(t, conn))
			}
			time.Sleep(brief / 100)
		}
		require.ErrorIs(t, s.await(t, PeerRefused, 1).Err, ErrTimeout)
		require.NoError(t, conn.Close())
		require.Eventually(t, func() bool { return connections(srv) == 0 }, 10*time.Second, time.Millisecond)
	}
}
