package share

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Records of a hostile consumer, by number after actHonest.
const (
	sayAny = actHonest + iota
	sayData
	sayChecked
	sayPrepared
	sayExpected
	sayNone
	sayWrite
	sayMapped
	sayMappedOther
	sayProgress
	sayGood
	sayBad
	sayRefuse
	sayOffer
	sayPublish
	sayRevoke
	sayLegacy
	sayMappedLegacy
	sayConfirm
	sayList
	saySuperseded
	sayFarewell
	sayDetached
	sayReattach
)

func consumerSays(kind cu.Kind, d vmm.Descriptor, legacy uint64) []wire.Message {
	return []wire.Message{
		wire.Attach{Driver: kind, Access: cu.ReadOnly, Name: ""}, wire.Attach{Driver: kind, Access: cu.ReadOnly, Name: "data"}, wire.Attach{Driver: kind, Access: cu.ReadOnly, Name: "checked"},
		wire.Attach{Driver: kind, Access: cu.ReadOnly, Name: "prepared"}, wire.Attach{Driver: kind, Access: cu.ReadOnly, Name: "expected"}, wire.Attach{Driver: kind, Access: cu.ReadOnly, Name: "none"},
		wire.Attach{Driver: kind, Access: cu.ReadWrite, Name: "data"}, wire.Mapped{Generation: d.Generation}, wire.Mapped{Generation: d.Generation + 1}, wire.Progress{Done: 1, Total: 2},
		wire.Verdict{OK: true, Text: ""}, wire.Verdict{OK: false, Text: "bad"}, wire.Refuse{Code: wire.RefusedBusy, Text: "no"},
		wire.Offer{Memory: d, Access: cu.ReadOnly, Name: "data", FDs: 1}, wire.Publish{Generation: d.Generation}, wire.Revoke{Text: "over"},
		wire.Attach{Driver: kind, Access: cu.ReadWrite, Name: "legacy", Capabilities: wire.TakesLegacy}, wire.Mapped{Generation: legacy}, wire.Confirm{Generation: legacy},
		wire.List{}, wire.Superseded{Generation: d.Generation}, wire.Farewell{},
		wire.Detached{Keep: 1}, wire.Attach{Driver: kind, Access: cu.ReadOnly, Name: "data", Reattach: d.Generation},
	}
}

// FuzzServer makes a consumer say anything, with files, to a server with
// offers of every kind (FAULTS 19 to 31). Invariant 2: the server ends the
// conversation, keeps no descriptor, and serves the next one.
func FuzzServer(f *testing.F) {
	dev, ctx := leavesNothing(f)
	g := granularity(f, dev)
	buf := newBuffer(f, ctx, 2*g, vmm.WithChunkSize(g))
	srv := listen(f)
	serveAs(f, srv, "data", buf, cu.ReadOnly)
	serveAs(f, srv, "checked", buf, cu.ReadWrite, OfferOptions{Verdict: true})
	plain := newLegacy(f, ctx, 4096)
	s := newServed(srv)
	s.start(f, "legacy", func(ctx context.Context) error {
		return offerLegacyFor(ctx, srv, "legacy", plain, OfferOptions{Verdict: true})
	})
	prepared(f, srv, "prepared", buf, cu.ReadOnly)
	expect(srv, "expected")
	says, files := consumerSays(dev.Driver().Kind(), buf.Describe(), plain.Generation()), odds(f)

	for _, seed := range [][]byte{
		nil, act(sayData), slices.Concat(act(sayData), []byte{actHear}, act(sayMapped), act(sayGood)),
		slices.Concat(act(sayChecked), act(sayMapped), act(sayProgress), act(sayBad)),
		slices.Concat(act(sayPrepared), []byte{actHear}, act(sayMapped)), slices.Concat(act(sayPrepared), act(sayBad)),
		act(sayExpected), slices.Concat(act(sayExpected), act(sayProgress)), act(sayNone), act(sayWrite), act(sayAny),
		slices.Concat(act(sayChecked), act(sayGood)), act(sayData, 0), slices.Concat(act(sayData), act(sayMapped, 1, 2)), slices.Concat(act(sayChecked), act(sayMappedOther)),
		slices.Concat(act(sayData), act(sayMapped), act(sayMapped)), act(sayOffer, 0), act(sayRefuse), act(sayPublish), act(sayRevoke),
		slices.Concat(flawed(4, 2), act(sayData)), slices.Concat(flawed(0, 'X'), act(sayData)), slices.Concat(flawed(12, 255), act(sayData)),
		slices.Concat(act(sayData), raw([]byte("GPFD"))), raw(nil, 0), raw(make([]byte, 300), 0, 1, 2, 0),
		slices.Concat(act(sayLegacy), []byte{actHear}, act(sayMappedLegacy), []byte{actHear}, act(sayGood)), slices.Concat(act(sayLegacy), act(sayMapped)),
		slices.Concat(act(sayLegacy), act(sayMappedLegacy), act(sayMappedLegacy)), slices.Concat(act(sayLegacy), act(sayConfirm)), act(sayConfirm),
		act(sayList), act(sayList, 0), slices.Concat(act(sayList), act(sayList)), slices.Concat(act(sayList), []byte{actHear}, act(sayData)), slices.Concat(act(sayData), act(sayList)),
		act(saySuperseded), slices.Concat(act(sayData), act(sayMapped), act(saySuperseded)),
		slices.Concat(act(sayData), act(sayMapped), act(sayDetached), act(sayDetached), act(sayFarewell)), slices.Concat(act(sayWrite), act(sayMapped), act(sayDetached)),
		slices.Concat(act(sayReattach), []byte{actHear}, act(sayMapped), act(sayDetached), act(sayReattach)), act(sayDetached), slices.Concat(act(sayData), act(sayDetached)),
	} {
		f.Add(seed)
	}
	for _, v := range recordsOfVectors(f) {
		f.Add(raw(v))
		f.Add(slices.Concat(act(sayChecked), raw(v, 1)))
	}

	honest := wire.Encode(wire.Attach{Driver: dev.Driver().Kind(), Access: cu.ReadOnly, Name: "data"})
	takeOffer(soon(f), f, srv, honest, 2)
	require.Eventually(f, func() bool { return connections(srv) == 0 }, 10*time.Second, time.Millisecond)
	before := settledDescriptors(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		conn := ok(sock.Dial(ctx, srv.Path()))(t)
		s := script{b, says, files}
		s.play(ctx, conn)
		hangUp(ctx, t, conn)
		require.NoError(t, conn.Close())
		takeOffer(ctx, t, srv, honest, 2)
		requireDescriptors(t, before)
	})
}

// takeOffer is an honest peer that gets so many descriptors and goes.
func takeOffer(ctx context.Context, t testing.TB, srv *Server, wish []byte, fds int) {
	t.Helper()
	conn := ok(sock.Dial(ctx, srv.Path()))(t)
	defer conn.Close()
	require.NoError(t, conn.Send(ctx, wish))
	rec := ok(conn.Receive(ctx))(t)
	require.Len(t, rec.Files, fds)
	require.NoError(t, rec.Close())
}

// settledDescriptors are those of a process in which nothing more is under way.
func settledDescriptors(t testing.TB) map[string]int {
	t.Helper()
	for now := cutest.Descriptors(); ; {
		time.Sleep(20 * time.Millisecond)
		last := now
		if now = cutest.Descriptors(); maps.Equal(last, now) {
			return now
		}
	}
}

// recordsOfVectors are the records of docs/wire.md, good ones and bad ones.
func recordsOfVectors(t testing.TB) (all [][]byte) {
	t.Helper()
	text := ok(os.ReadFile("../internal/wire/testdata/vectors.json"))(t)
	var sorts map[string][]struct{ Hex string }
	require.NoError(t, json.Unmarshal(text, &sorts))
	for _, v := range slices.Concat(sorts["vectors"], sorts["foreign"], sorts["invalid"]) {
		if b, err := hex.DecodeString(v.Hex); err == nil && len(b) < 256 { // long ones take long to be made shorter
			all = append(all, b)
		}
	}
	return all
}

// Records of a hostile producer, by number after actHonest. Its files are three
// chunks, memory of another size, a file that is no memory, and application data.
const (
	offerAll = actHonest + iota
	offerTwo
	offerThird
	offerPending
	offerAllPending
	offerEarlyTwo
	offerOne
	tellPublish
	tellPublishOther
	tellProgress
	tellRevoke
	tellRefuse
	tellMapped
	tellVerdict
	tellAttach
	offerLegacy
	offerLegacyPending
	tellConfirm
	tellSuperseded
	tellListed
	offerData
	tellData
)

func producerSays(kind cu.Kind, d vmm.Descriptor, legacy wire.Offer) []wire.Message {
	all := wire.Offer{Memory: d, Access: cu.ReadOnly, Name: "data", Data: []byte("its own"), FDs: 3}
	with := func(first, fds int, pending bool) wire.Offer {
		o := all
		o.First, o.FDs, o.Pending = first, fds, pending
		return o
	}
	pending := legacy
	pending.Pending = true
	large := all
	large.Data, large.DataSize = nil, 5000
	one := all
	one.Memory.Chunks, one.Memory.Size, one.FDs = 1, 1, 1
	return []wire.Message{
		all, with(0, 2, false), with(2, 1, false), with(2, 1, true), with(0, 3, true), with(0, 2, true), one,
		wire.Publish{Generation: d.Generation}, wire.Publish{Generation: d.Generation + 1}, wire.Progress{Done: 1, Total: 2}, wire.Revoke{Text: "over"}, wire.Refuse{Code: wire.RefusedBusy, Text: "no"},
		wire.Mapped{Generation: d.Generation}, wire.Verdict{OK: true, Text: ""}, wire.Attach{Driver: kind, Access: cu.ReadOnly, Name: "data"},
		legacy, pending, wire.Confirm{Generation: d.Generation},
		wire.Superseded{Generation: d.Generation}, wire.Listed{}, large, wire.Data{},
	}
}

// FuzzAttach makes a producer say anything, with files, to a consumer
// that attaches, in a way that the first byte says (FAULTS 19 to 31, 35 to 40).
// Invariants 2 and 4: Attach ends. It keeps nothing of memory that it does not
// attach to; memory that it attaches to can be read and given back.
func FuzzAttach(f *testing.F) {
	spy, dev, ctx := spied(f)
	g := granularity(f, dev)
	d, files, err := newBuffer(f, ctx, 3*g, vmm.WithChunkSize(g)).Export()
	_, other, err2 := newBuffer(f, ctx, 2*g).Export()
	require.NoError(f, errors.Join(err, err2))
	files = append(files, other[0])
	f.Cleanup(func() { _ = sock.CloseFiles(files) })
	files = append(append(files, odds(f)...), memory(f, 5000, sealed))
	l := ok(sock.Listen(socketPath(f)))(f)
	f.Cleanup(func() { _ = l.Close() })
	legacy, _ := legacyTruth(f, dev)
	legacy.Memory.Generation = d.Generation
	says := producerSays(dev.Driver().Kind(), d, legacy)

	for _, seed := range [][]byte{
		nil, act(offerAll, 0, 1, 2), slices.Concat(act(offerTwo, 0, 1), act(offerThird, 2)),
		slices.Concat(act(offerAllPending, 0, 1, 2), act(tellProgress), act(tellPublish), []byte{actHear}, act(tellRevoke)),
		slices.Concat(act(offerEarlyTwo, 0, 1), act(tellProgress), act(offerPending, 2), act(tellPublish)),
		slices.Concat(act(offerAllPending, 0, 1, 2), act(tellPublishOther)), slices.Concat(act(offerAllPending, 0, 1, 2), act(tellRevoke)),
		slices.Concat(act(offerAll, 0, 1, 2), []byte{actHear}, act(offerAll, 0, 1, 2)), act(offerOne, 1), act(offerOne, 3), act(offerOne, 4),
		act(offerAll), act(offerAll, 0, 1), act(offerAll, 0, 1, 2, 0), act(offerAll, 0, 1, 3), act(offerAll, 0, 5, 2), act(offerAll, 6, 1, 2),
		slices.Concat(act(offerTwo, 0, 1), act(offerTwo, 0, 1)), slices.Concat(act(offerTwo, 0, 1), act(offerPending, 2)),
		act(tellRefuse), act(tellRevoke), act(tellRefuse, 0), act(tellMapped), act(tellVerdict), act(tellAttach), act(tellProgress),
		slices.Concat(flawed(4, 2), act(offerAll, 0, 1, 2)), slices.Concat(flawed(18, 8), act(offerAll, 0, 1, 2)),
		slices.Concat(flawed(24, 9), act(offerAll, 0, 1, 2)), slices.Concat(flawed(47, 0x80), act(offerAll, 0, 1, 2)),
		slices.Concat(flawed(50, 0x40), act(offerAll, 0, 1, 2)), raw(nil, 0), raw(make([]byte, 300), 0, 4, 5, 6),
		slices.Concat(act(offerLegacy), []byte{actHear}, act(tellConfirm)), slices.Concat(act(offerLegacy), []byte{actHear}, act(tellRevoke)),
		slices.Concat(act(offerLegacyPending), act(tellPublish), []byte{actHear}, act(tellConfirm), act(tellRevoke)), act(offerLegacy), act(offerLegacy, 0),
		slices.Concat(act(offerLegacyPending), act(tellConfirm)), slices.Concat(flawed(90, 1), act(offerLegacy), act(tellConfirm)), slices.Concat(flawed(58, 255), act(offerLegacy)),
		slices.Concat(act(offerTwo, 0, 1), act(offerLegacy)), slices.Concat(act(offerLegacy), []byte{actHear}, act(tellPublishOther)),
		slices.Concat(act(tellSuperseded), act(offerTwo, 0, 1), act(tellSuperseded), act(offerThird, 2), act(tellSuperseded)),
		slices.Concat(act(offerAllPending, 0, 1, 2), act(tellSuperseded), act(tellPublish), act(tellSuperseded)), act(tellListed),
		slices.Concat(act(offerData, 0, 1, 2), act(tellData, 7)), slices.Concat(act(offerData, 0, 1, 2), act(tellData, 5)), act(tellData, 7),
		slices.Concat(act(offerData, 0, 1, 2), act(tellData, 7), act(tellData, 7)),
	} {
		for way := range byte(len(attachWays)) {
			f.Add(append([]byte{way}, seed...))
		}
	}
	for _, v := range recordsOfVectors(f) {
		f.Add(append([]byte{0}, raw(v, 0)...))
		f.Add(slices.Concat([]byte{1}, act(offerAll, 0, 1, 2), raw(v)))
	}

	before, owed := settledDescriptors(f), spy.owed()
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s := script{b, says, files}
		way := attachWays[int(s.byte())%len(attachWays)]
		over := make(chan error, 1)
		go func() { over <- produce(ctx, l, &s) }()
		att, err := Attach(ctx, l.Path(), way.name, dev, &way.opts)
		require.NoError(t, ctx.Err(), "Attach does not end: %v", err)
		require.Equal(t, err == nil, att != nil, "%v", err)
		if err == nil {
			readAndClose(t, att)
		}
		require.NoError(t, <-over)
		require.Equal(t, owed, spy.owed())
		requireDescriptors(t, before)
	})
}

// attachWays are how FuzzAttach attaches.
var attachWays = []struct {
	name string
	opts AttachOptions
}{
	{"data", AttachOptions{Legacy: true}},
	{"", AttachOptions{Legacy: true, AnyDevice: true}},
	{"data", AttachOptions{Legacy: true, Access: cu.ReadWrite}},
}

// produce takes one connection and does what the script says.
func produce(ctx context.Context, l *sock.Listener, s *script) error {
	conn, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if rec, err := conn.Receive(ctx); err == nil { // the wish to attach
		_ = rec.Close()
		s.play(ctx, conn)
	}
	return nil
}

// readAndClose reads a little of what was attached, to its last byte.
func readAndClose(t *testing.T, att *Attachment) {
	t.Helper()
	ctx := cutest.Context(t, att.Device())
	n := min(att.Size(), 4096)
	require.NoError(t, cu.CopyToHost(ctx, make([]byte, n), att.Ptr().Add(att.Size()-n)))
	require.NoError(t, att.Close())
}

// A script lists the acts of a hostile peer, which a fuzzer makes up. An act is a
// byte that says which, the bytes that it takes, and the number and choice of the
// files that go with a record.
//
// Most acts are records as an honest peer would send them, so that a script of a
// few bytes gets far into a conversation, with changes of single bytes.
type script struct {
	bytes  []byte
	honest []wire.Message
	files  []*os.File
}

// The kinds of acts; from actHonest on an act is a record of an honest peer.
const (
	actRaw  = iota // send a record of the script's own: a length of two bytes, and as many
	actFlaw        // have the next honest record changed: an offset of two bytes, and a value
	actHear        // wait until the peer says something
	actHonest
)

// The limits of one script, so that it is soon over.
const (
	maxActs  = 24
	maxFiles = 4
)

// play does all of it, and returns when there is no more or the peer has gone.
func (s *script) play(ctx context.Context, conn *sock.Conn) {
	var flaws [][2]int
	for n := 0; n < maxActs && len(s.bytes) > 0; n++ {
		ok := true
		switch what := int(s.byte()) % (actHonest + len(s.honest)); what {
		case actRaw:
			ok = send(ctx, conn, s.take(s.u16()), s.pick())
		case actFlaw:
			flaws = append(flaws, [2]int{s.u16(), int(s.byte())})
		case actHear:
			ok = hears(ctx, conn)
		default:
			record := wire.Encode(s.honest[what-actHonest])
			for _, f := range flaws {
				record[f[0]%len(record)] = byte(f[1])
			}
			flaws = nil
			ok = send(ctx, conn, record, s.pick())
		}
		if !ok {
			return
		}
	}
}

// take removes n bytes, or as many as there are.
func (s *script) take(n int) []byte {
	b := s.bytes[:min(n, len(s.bytes))]
	s.bytes = s.bytes[len(b):]
	return b
}

func (s *script) byte() byte {
	for _, b := range s.take(1) {
		return b
	}
	return 0
}

func (s *script) u16() int { return int(s.byte()) | int(s.byte())<<8 }

func (s *script) pick() (files []*os.File) {
	for range s.byte() % (maxFiles + 1) {
		files = append(files, s.files[int(s.byte())%len(s.files)])
	}
	return files
}

// send returns false if the peer takes no more.
func send(ctx context.Context, conn *sock.Conn, record []byte, files []*os.File) bool {
	err := conn.Send(ctx, record, files...)
	return err == nil || errors.Is(err, sock.ErrEmptyRecord)
}

// hears takes one record, and returns false if none came. A peer that has
// nothing to say is not waited for long.
func hears(ctx context.Context, conn *sock.Conn) bool {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	rec, err := conn.Receive(ctx)
	_ = rec.Close()
	return err == nil || errors.Is(err, context.DeadlineExceeded)
}

// An act of a seed: what, and which files go with it.
func act(what int, files ...byte) []byte {
	return append([]byte{byte(what), byte(len(files))}, files...)
}

// raw is an act that sends a record as it is.
func raw(record []byte, files ...byte) []byte {
	b := append([]byte{actRaw, byte(len(record)), byte(len(record) >> 8)}, record...)
	return append(append(b, byte(len(files))), files...)
}

// flawed is an act that changes the next honest record.
func flawed(offset int, value byte) []byte {
	return []byte{actFlaw, byte(offset), byte(offset >> 8), value}
}

// odds are files that no conversation has a use for: a pipe, /dev/null, and the
// directory.
func odds(f *testing.F) []*os.File {
	f.Helper()
	r, w, err := os.Pipe()
	null, err2 := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	dir, err3 := os.Open(".")
	if err := errors.Join(err, err2, err3, w.Close()); err != nil {
		f.Fatal(err)
	}
	files := []*os.File{r, null, dir}
	f.Cleanup(func() { _ = sock.CloseFiles(files) })
	return files
}

// hangUp says that this end has no more to say, and listens until the other has
// gone.
func hangUp(ctx context.Context, t *testing.T, conn *sock.Conn) {
	t.Helper()
	own, err := conn.File()
	if err == nil {
		raw, rerr := own.SyscallConn()
		err = errors.Join(rerr, raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_WR) }), own.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	for {
		rec, err := conn.Receive(ctx)
		_ = rec.Close()
		if errors.Is(err, sock.ErrPeerLost) {
			return
		}
		if err != nil {
			t.Fatalf("the peer does not go: %v", err)
		}
	}
}

// requireDescriptors waits a moment until the process has no more descriptors of any kind
// than want. It may have fewer: where nobody waits for a close, want can count a socket of
// the test before.
func requireDescriptors(t testing.TB, want map[string]int) {
	t.Helper()
	for end := time.Now().Add(3 * time.Second); hasMore(cutest.Descriptors(), want); {
		if time.Now().After(end) {
			t.Fatalf("descriptors: %v, and were %v", cutest.Descriptors(), want)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// hasMore reports whether now has more descriptors of some kind than before.
func hasMore(now, before map[string]int) bool {
	for kind, n := range now {
		if n > before[kind] {
			return true
		}
	}
	return false
}
