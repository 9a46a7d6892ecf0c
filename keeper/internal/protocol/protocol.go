// Package protocol defines the messages between clients and keepers at the control socket: JSON objects, each
// in as many records as it takes, with the descriptors of a part beside them. docs/wire.md#keeper specifies it.
package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// ControlSuffix follows the path of the keeper's socket in that of the control socket.
const ControlSuffix = ".ctl"

// The bounds of a message: what a record carries of it, and the whole.
const (
	MaxPiece   = 60 << 10
	MaxMessage = 256 << 10 // to a keeper; labels at their longest have a quarter, where JSON makes six bytes of each
	MaxReply   = 256 << 20 // of a keeper: all names
)

// ErrTooLong says that a message was not sent because of its length.
var ErrTooLong = errors.New("keeper: the message is too long")

// The first byte of a record says whether there is more of its message.
const (
	PieceMore = 0
	PieceLast = 1
)

// The operations. Each is answered by one reply, except watch.
const (
	OpStatus  = "status"
	OpList    = "list"    // of all names that the peer may read
	OpStat    = "stat"    // name
	OpBook    = "book"    // a part of a version: a ticket
	OpRenew   = "renew"   // a ticket of a connection that is over
	OpFiles   = "files"   // ticket, descriptors: the next chunks of its part
	OpTable   = "table"   // ticket, a sealed memfd: what readers are told as well
	OpDeliver = "deliver" // ticket: its part is whole
	OpCancel  = "cancel"  // ticket
	OpRemove  = "remove"  // name
	OpDrain   = "drain"   // name or device, on
	OpPark    = "park"    // name, version: its parts go to memory of the host
	OpUnpark  = "unpark"  // name, version: and back
	OpReport  = "report"  // name, version, part, verdict
	OpWatch   = "watch"   // name, or "" for all: a reply for each event, until the peer goes
	OpYield   = "yield"   // the keeper is to end for a successor
	OpEnd     = "end"     // the keeper is to end for good

	OpLease    = "lease"    // name, part, access: whether a reader that attaches now is admitted
	OpManifest = "manifest" // what a successor would find, as a sealed memfd beside the reply
)

// A Request is what a client asks. Members that an operation does not know are ignored,
// and what it must not ignore is named in Needs.
type Request struct {
	Op    string   `json:"op"`
	Needs []string `json:"needs,omitempty"`

	Name        string            `json:"name,omitempty"`
	Transaction string            `json:"transaction,omitempty"`
	Ticket      string            `json:"ticket,omitempty"`
	Version     uint64            `json:"version,omitempty"`
	Part        int               `json:"part,omitempty"`
	Parts       int               `json:"parts,omitempty"`
	Device      string            `json:"device,omitempty"`
	Kind        string            `json:"driver,omitempty"`
	Bytes       uint64            `json:"bytes,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Expect      *uint64           `json:"expect,omitempty"`
	TimeoutMS   int64             `json:"timeout_ms,omitempty"`
	Memory      *Memory           `json:"memory,omitempty"`
	Digest      string            `json:"digest,omitempty"`
	Layout      string            `json:"layout,omitempty"`
	Verdict     string            `json:"verdict,omitempty"`
	Reason      string            `json:"reason,omitempty"`
	On          bool              `json:"on,omitempty"`
	Access      string            `json:"access,omitempty"`
}

// Check refuses text that JSON cannot carry, and would change.
func (r Request) Check() error {
	for k, v := range r.Labels {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return &Error{Code: state.BadRequest, Message: fmt.Sprintf("label %q=%q is not UTF-8", k, v)}
		}
	}
	for _, s := range []string{r.Name, r.Transaction} {
		if !utf8.ValidString(s) {
			return &Error{Code: state.BadRequest, Message: fmt.Sprintf("name %q is not UTF-8", s)}
		}
	}
	return nil
}

// Bounded refuses what no request needs, before it waits for anything.
func (r Request) Bounded() error {
	if len(r.Labels) > state.MaxLabels {
		return BadRequest("%d labels; %d are allowed", len(r.Labels), state.MaxLabels)
	}
	if len(r.Needs) > maxNeeds {
		return BadRequest("a request that needs %d things; %d are allowed", len(r.Needs), maxNeeds)
	}
	return nil
}

// BadRequest returns the refusal of a request that makes no sense.
func BadRequest(format string, a ...any) error {
	return &Error{Code: "bad-request", Message: fmt.Sprintf(format, a...)}
}

// maxNeeds is how many things a request may need at most.
const maxNeeds = 64

// Memory is a [gpumem.Descriptor].
type Memory struct {
	Size        uint64 `json:"size"`
	ChunkSize   uint64 `json:"chunk_size"`
	Chunks      int    `json:"chunks"`
	Granularity uint64 `json:"granularity"`
	Generation  uint64 `json:"generation"`
}

// Describe returns the protocol's form of d.
func Describe(d gpumem.Descriptor) *Memory {
	return &Memory{d.Size, d.ChunkSize, d.Chunks, d.Granularity, d.Generation}
}

// Descriptor returns the descriptor of memory of a kind on a device.
func (m *Memory) Descriptor(k gpumem.Kind, dev gpumem.UUID) gpumem.Descriptor {
	return gpumem.Descriptor{Kind: k, Device: dev, Size: m.Size, ChunkSize: m.ChunkSize, Chunks: m.Chunks, Granularity: m.Granularity, Generation: m.Generation}
}

// A Reply answers a request.
type Reply struct {
	Error     *Error      `json:"error,omitempty"`
	Ticket    string      `json:"ticket,omitempty"`
	Version   uint64      `json:"version,omitempty"`
	Missing   int         `json:"missing,omitempty"`   // parts of the transaction that have not come
	Delivered bool        `json:"delivered,omitempty"` // the part of the ticket has come: see version and missing
	Names     []api.Info  `json:"names,omitempty"`
	Status    *api.Status `json:"status,omitempty"`
	Event     *api.Event  `json:"event,omitempty"`
	Counted   bool        `json:"counted,omitempty"`
	Moved     *api.Moved  `json:"moved,omitempty"`
}

// An Error is a keeper's refusal, with the reason.
type Error = api.Error

// Send sends v, in as many records as it takes; files go with the first.
func Send(ctx context.Context, c *sock.Conn, v any, files ...*os.File) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	limit := MaxMessage
	if _, ok := v.(Reply); ok {
		limit = MaxReply
	}
	if len(text) > limit {
		return fmt.Errorf("%w: %d bytes; %d are allowed", ErrTooLong, len(text), limit)
	}
	return sendText(ctx, c, text, files...)
}

// sendText sends a message as it is written.
func sendText(ctx context.Context, c *sock.Conn, text []byte, files ...*os.File) error {
	for {
		n := min(len(text), MaxPiece)
		piece := append([]byte{PieceLast}, text[:n]...)
		if text = text[n:]; len(text) > 0 {
			piece[0] = PieceMore
		}
		if err := c.Send(ctx, piece, files...); err != nil {
			return err
		}
		if files = nil; len(text) == 0 {
			return nil
		}
	}
}

// ErrMalformed says that the peer sent no valid message.
var ErrMalformed = errors.New("keeper: malformed message")

// Receive receives what Send sends, of limit bytes at most. The caller owns the files.
func Receive(ctx context.Context, c *sock.Conn, limit int, v any) (files []*os.File, err error) {
	m := Message{Conn: c, Limit: limit}
	return m.Receive(ctx, v)
}

// A Room is memory that is lent to users for a short time.
type Room interface {
	Take(uid uint32, n int) error // takes n bytes, or none and returns the reason
	Leave(uid uint32, n int)      // gives them back
}

// A Message assembles a request or reply from several records.
type Message struct {
	Conn  *sock.Conn
	Limit int           // in bytes
	Step  time.Duration // how long it may take once it has begun, or 0
	Room  Room          // that its bytes are charged to, or nil
	Turn  sync.Locker   // held while a long text is decoded, or nil

	text    []byte
	files   []*os.File
	records int
	counted int // bytes, in room
}

// Receive receives the message and decodes it into v. The caller owns the files.
func (m *Message) Receive(ctx context.Context, v any) (files []*os.File, err error) {
	if m.Room != nil {
		defer func() { m.Room.Leave(m.Conn.Peer().UID, m.counted) }()
	}
	last, err := m.piece(ctx)
	if err == nil && !last && m.Step > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, m.Step)
		defer cancel()
	}
	for err == nil && !last {
		last, err = m.piece(ctx)
	}
	if err == nil {
		if err = m.decode(v); err != nil {
			err = fmt.Errorf("%w: %w", ErrMalformed, err)
		}
	}
	if err != nil {
		sock.DropFiles(m.files)
		return nil, err
	}
	return m.files, nil
}

// decode decodes the text. The result may take much more memory.
func (m *Message) decode(v any) error {
	if m.Turn != nil && len(m.text) > longMessage {
		m.Turn.Lock()
		defer m.Turn.Unlock()
	}
	return json.Unmarshal(m.text, v)
}

// longMessage is the length above which texts are decoded one at a time.
const longMessage = 4 << 10

// count charges n more bytes to room, if there is one.
func (m *Message) count(n int) error {
	if m.Room == nil {
		return nil
	}
	err := m.Room.Take(m.Conn.Peer().UID, n)
	if err == nil {
		m.counted += n
	}
	return err
}

// piece receives a record, and reports whether it is the last.
func (m *Message) piece(ctx context.Context) (last bool, err error) {
	rec, err := m.Conn.Receive(ctx)
	if err != nil {
		return false, err
	}
	m.records++
	m.files = append(m.files, rec.Files...)
	switch {
	case rec.Data[0] > PieceLast:
		return false, fmt.Errorf("%w: a record begins with %d", ErrMalformed, rec.Data[0])
	case len(m.text)+len(rec.Data) > m.Limit:
		return false, fmt.Errorf("%w: longer than %d bytes", ErrMalformed, m.Limit)
	case len(rec.Files) > 0 && (m.records > 1 || rec.Data[0] != PieceLast):
		return false, fmt.Errorf("%w: a message with descriptors is one record", ErrMalformed)
	}
	if err := m.count(len(rec.Data)); err != nil {
		return false, err
	}
	m.text = append(m.text, rec.Data[1:]...)
	return rec.Data[0] == PieceLast, nil
}
