package programs

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

// A Message is one record on its way, with its files.
type Message struct {
	Record []byte
	Files  []*os.File
	Sent   func() // is called once it is on its way
}

// An Edit changes a message; if it sets the record to nil, that is not sent. What it adds to files
// stays open.
type Edit func(m *Message)

// Relayed returns a scene whose socket leads to the producer of s through a relay with edits:
// of what the producer says, and of what its consumer does; nil changes nothing.
func (s *Scene) Relayed(t *testing.T, fromProducer, fromConsumer Edit) *Scene {
	t.Helper()
	r := NewScene(t)
	l, err := sock.Listen(r.Socket)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	done := make(chan struct{})
	go func() {
		defer close(done)
		consumer, err := l.Accept(ctx)
		if err != nil {
			return // nobody came
		}
		producer, err := sock.Dial(ctx, s.Socket)
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
func relay(ctx context.Context, to, from *sock.Conn, change Edit) {
	defer to.Close()
	for {
		rec, err := from.Receive(ctx)
		if err != nil {
			return
		}
		m := Message{Record: rec.Data, Files: rec.Files, Sent: func() {}}
		if change != nil {
			change(&m)
		}
		if m.Record != nil {
			err = to.Send(ctx, m.Record, m.Files...)
		}
		_ = rec.Close()
		if err != nil {
			return
		}
		m.Sent()
	}
}

// Offsets in records, as docs/wire.md has them; behind body those of an OFFER.
const (
	AtVersion, AtType, AtFlags, AtLength = 4, 6, 8, 12

	Body          = 16
	AtHandleType  = Body + 2
	AtChunks      = Body + 4
	AtDevice      = Body + 8
	AtSize        = Body + 24
	AtChunkSize   = Body + 32
	AtGranularity = Body + 40
	AtFDs         = Body + 60
)

// OnlyOf applies f to records of one type.
func OnlyOf(kind byte, f Edit) Edit {
	return func(m *Message) {
		if m.Record[AtType] == kind {
			f(m)
		}
	}
}

// Drop keeps records of one type from the other side, and with that what comes behind them
// from coming to its end.
func Drop(kind byte) Edit { return OnlyOf(kind, func(m *Message) { m.Record = nil }) }

// Put writes bytes into the record.
func Put(at int, b ...byte) Edit { return func(m *Message) { copy(m.Record[at:], b) } }

// Changed changes a number of 64 bits.
func Changed(at int, f func(uint64) uint64) Edit {
	return func(m *Message) {
		binary.LittleEndian.PutUint64(m.Record[at:], f(binary.LittleEndian.Uint64(m.Record[at:])))
	}
}

func Becomes(n uint64) func(uint64) uint64 { return func(uint64) uint64 { return n } }

// All applies several edits.
func All(edits ...Edit) Edit {
	return func(m *Message) {
		for _, f := range edits {
			f(m)
		}
	}
}

// Sends replaces the files.
func Sends(files ...*os.File) Edit { return func(m *Message) { m.Files = files } }

// Offsets of the legacy part of the commands' offer, behind name and data.
const (
	AtOffset = Body + 68 + len(cli.OfferName) + 16
	AtHandle = AtOffset + 8
)

// The records of docs/wire.md, written by somebody who does not have the library.
const (
	TypeAttach   = 1
	TypeOffer    = 2
	TypeRefuse   = 3
	TypeProgress = 4
	TypeMapped   = 5
	TypeVerdict  = 6
	TypeRevoke   = 7
	TypePublish  = 8
	TypeConfirm  = 9
)

func Record(typ uint16, body ...byte) []byte {
	b := append([]byte("GPFD"), byte(share.Version), 0)
	b = binary.LittleEndian.AppendUint16(b, typ)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(body)))
	return append(b, body...)
}

func Wish(access byte, name string) []byte {
	return Record(TypeAttach, append([]byte{byte(cutest.Kind()), access, 0, 0, byte(len(name)), 0}, name...)...)
}

func Number(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

func Progress() []byte { return Record(TypeProgress, append(Number(1), Number(2)...)...) }

// Hear receives a record, or nothing, and closes the descriptors that come along.
func Hear(fd int) []byte {
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
