package tests

import (
	"context"
	"encoding/binary"
	"os"
	"sync"
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A said is one record on its way, with its files.
type said struct {
	record []byte
	files  []*os.File
	sent   func() // is called once it is on its way
}

// A twist changes what is said; a record that it sets to nil is not. What it adds to files
// stays the test's.
type twist func(m *said)

// relayed returns a scene whose socket leads to the producer of s, past twists:
// of what the producer says, and of what its consumer does; nil changes nothing.
func (s *scene) relayed(t *testing.T, fromProducer, fromConsumer twist) *scene {
	t.Helper()
	r := newScene(t)
	l, err := sock.Listen(r.socket)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	done := make(chan struct{})
	go func() {
		defer close(done)
		consumer, err := l.Accept(ctx)
		if err != nil {
			return // nobody came
		}
		producer, err := sock.Dial(ctx, s.socket)
		if err != nil {
			_ = consumer.Close()
			return
		}
		var wg sync.WaitGroup
		wg.Go(func() { relay(ctx, consumer, producer, fromProducer) })
		wg.Go(func() { relay(ctx, producer, consumer, fromConsumer) })
		wg.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		require.NoError(t, l.Close())
	})
	return r
}

// relay sends on what comes until one of the two goes, and then sends the other
// away.
func relay(ctx context.Context, to, from *sock.Conn, change twist) {
	defer to.Close()
	for {
		rec, err := from.Receive(ctx)
		if err != nil {
			return
		}
		m := said{record: rec.Data, files: rec.Files, sent: func() {}}
		if change != nil {
			change(&m)
		}
		if m.record != nil {
			err = to.Send(ctx, m.record, m.files...)
		}
		_ = rec.Close()
		if err != nil {
			return
		}
		m.sent()
	}
}

// Offsets in records, as docs/wire.md has them; behind body those of an OFFER.
const (
	atVersion, atType, atFlags, atLength = 4, 6, 8, 12

	body          = 16
	atHandleType  = body + 2
	atChunks      = body + 4
	atDevice      = body + 8
	atSize        = body + 24
	atChunkSize   = body + 32
	atGranularity = body + 40
	atFDs         = body + 60
)

// onlyOf has f twist records of one type.
func onlyOf(kind byte, f twist) twist {
	return func(m *said) {
		if m.record[atType] == kind {
			f(m)
		}
	}
}

// unsaid keeps records of one type from the other side, and with that what comes behind them
// from coming to its end.
func unsaid(kind byte) twist { return onlyOf(kind, func(m *said) { m.record = nil }) }

// put writes bytes into the record.
func put(at int, b ...byte) twist { return func(m *said) { copy(m.record[at:], b) } }

// changed changes a number of 64 bits.
func changed(at int, f func(uint64) uint64) twist {
	return func(m *said) {
		binary.LittleEndian.PutUint64(m.record[at:], f(binary.LittleEndian.Uint64(m.record[at:])))
	}
}

func becomes(n uint64) func(uint64) uint64 { return func(uint64) uint64 { return n } }

// all does several twists.
func all(twists ...twist) twist {
	return func(m *said) {
		for _, f := range twists {
			f(m)
		}
	}
}

// sends replaces the files.
func sends(files ...*os.File) twist { return func(m *said) { m.files = files } }

// Where the legacy part of the commands' offer begins: behind name and data.
const (
	atOffset = body + 68 + len(cli.OfferName) + 16
	atHandle = atOffset + 8
)

// The records of docs/wire.md, written by somebody who does not have the library.
const (
	typeAttach   = 1
	typeOffer    = 2
	typeRefuse   = 3
	typeProgress = 4
	typeMapped   = 5
	typeVerdict  = 6
	typeRevoke   = 7
	typePublish  = 8
	typeConfirm  = 9
)

func record(typ uint16, body ...byte) []byte {
	b := append([]byte("GPFD"), byte(share.Version), 0)
	b = binary.LittleEndian.AppendUint16(b, typ)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

func wish(access byte, name string) []byte {
	return record(typeAttach, append([]byte{byte(cutest.Kind()), access, 0, 0, byte(len(name)), 0}, name...)...)
}

func number(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

func progress() []byte { return record(typeProgress, append(number(1), number(2)...)...) }

// hear receives a record, or nothing, and closes the descriptors that come along.
func hear(fd int) []byte {
	b, oob := make([]byte, sock.MaxRecord), make([]byte, 2048)
	n, oobn, _, _, err := unix.Recvmsg(fd, b, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil
	}
	messages, _ := unix.ParseSocketControlMessage(oob[:oobn])
	for _, m := range messages {
		fds, _ := unix.ParseUnixRights(&m)
		for _, fd := range fds {
			unix.Close(fd)
		}
	}
	return b[:n]
}
