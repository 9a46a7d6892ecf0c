package protocol

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/sock"
)

// A vector is a message of testdata/vectors.json. Records are text, but for their first byte.
type vector struct {
	Name    string          `json:"name"`
	Kind    string          `json:"kind"` // request or reply
	Records []string        `json:"records"`
	Files   int             `json:"files"`
	Message json.RawMessage `json:"message"`
}

func readVectors(t *testing.T) (all struct{ Vectors, Foreign, Invalid []vector }) {
	t.Helper()
	text := ok(os.ReadFile("../../testdata/vectors.json"))(t)
	require.NoError(t, json.Unmarshal(text, &all))
	return all
}

// conversation is both ends of a connection.
func conversation(t *testing.T) (ctx context.Context, client, server *sock.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	dir := ok(os.MkdirTemp("", "gpufd-"))(t)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	l := ok(sock.Listen(filepath.Join(dir, "s")))(t)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	client = ok(sock.Dial(ctx, filepath.Join(dir, "s")))(t)
	t.Cleanup(func() { <-client.Drop() })
	server = ok(l.Accept(ctx))(t)
	t.Cleanup(func() { <-server.Drop() })
	return ctx, client, server
}

// message returns the value that a vector of that kind decodes to.
func (v vector) message() any {
	if v.Kind == "reply" {
		return &Reply{}
	}
	return &Request{}
}

// Messages are sent as the vectors say, to the byte, and are received as they were sent.
func TestVectors(t *testing.T) {
	ctx, client, server := conversation(t)
	null := ok(os.Open(os.DevNull))(t)
	defer null.Close()
	for _, v := range readVectors(t).Vectors {
		m := v.message()
		require.NoError(t, json.Unmarshal(v.Message, m), v.Name)
		files := []*os.File{null, null}[:v.Files]
		require.NoError(t, Send(ctx, client, m, files...), v.Name)
		for _, want := range v.Records {
			rec, err := server.Receive(ctx)
			require.NoError(t, err, v.Name)
			require.Equal(t, want[:1], string(rec.Data[:1]), v.Name)
			require.JSONEq(t, want[1:], string(rec.Data[1:]), v.Name)
			require.Len(t, rec.Files, v.Files, v.Name)
			sock.DropFiles(rec.Files)
		}
		requireReads(t, ctx, client, server, v)
	}
}

// A message of a later program is read as far as it is known.
func TestForeignVectors(t *testing.T) {
	ctx, client, server := conversation(t)
	for _, v := range readVectors(t).Foreign {
		requireReads(t, ctx, client, server, v)
	}
}

// requireReads sends the records of a vector and receives its message.
func requireReads(t *testing.T, ctx context.Context, client, server *sock.Conn, v vector) {
	t.Helper()
	for _, r := range v.Records {
		require.NoError(t, client.Send(ctx, []byte(r)), v.Name)
	}
	got := v.message()
	files, err := Receive(ctx, server, MaxMessage, got)
	require.NoError(t, err, v.Name)
	require.Empty(t, files)
	text := ok(json.Marshal(got))(t)
	require.JSONEq(t, string(v.Message), string(text), v.Name)
}

// Records that are no message are refused, and their descriptors are closed.
func TestInvalidVectors(t *testing.T) {
	for _, v := range readVectors(t).Invalid {
		ctx, client, server := conversation(t)
		for _, r := range v.Records {
			require.NoError(t, client.Send(ctx, []byte(r)), v.Name)
		}
		files, err := Receive(ctx, server, MaxMessage, &Request{})
		require.ErrorIs(t, err, ErrMalformed, v.Name)
		require.Empty(t, files)
	}
}

// A message longer than a record comes in several, and one beyond the bound is refused by
// both sides.
func TestLongMessages(t *testing.T) {
	ctx, client, server := conversation(t)
	long := Request{Op: OpStat, Reason: strings.Repeat("x", 3*MaxPiece)}
	sent := make(chan error, 1)
	go func() { sent <- Send(ctx, client, long) }()
	var got Request
	require.NoError(t, errOf(Receive(ctx, server, MaxMessage, &got)))
	require.NoError(t, <-sent)
	require.Equal(t, long, got)
	long.Reason = strings.Repeat("x", MaxMessage)
	require.ErrorContains(t, Send(ctx, client, long), "are allowed")

	go func() {
		piece := make([]byte, MaxPiece)
		for range MaxMessage/MaxPiece + 1 {
			if client.Send(ctx, piece) != nil {
				break
			}
		}
		close(sent)
	}()
	require.ErrorIs(t, errOf(Receive(ctx, server, MaxMessage, &got)), ErrMalformed)
	server.Drop()
	<-sent
}

// The keeper at a socket belongs to this user, or to the owner of the directory.
func TestKeeperOf(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "socket")
	require.Equal(t, sock.Policy{}, KeeperOf(socket))
	require.Equal(t, sock.Policy{}, KeeperOf("/nonexistent/socket"))
	if os.Chown(dir, 1234, 1234) != nil {
		t.Skip("only root gives a directory to another user")
	}
	require.NoError(t, os.Chmod(dir, 0o711))
	require.Equal(t, sock.Policy{UIDs: []uint32{1234}}, KeeperOf(socket))
	require.NoError(t, os.Chmod(dir, 0o731))
	require.Equal(t, sock.Policy{}, KeeperOf(socket), "others may have made it")
}
