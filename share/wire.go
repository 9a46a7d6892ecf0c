package share

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// Version is the version of the wire format that this package speaks.
const Version = 1

const (
	magic      = "GPFD"
	headerSize = 16
	offerSize  = 68 // without name and data
	maxName    = 255
	maxData    = 4096
	maxText    = 4096
)

// MaxData is how many bytes of application data an offer may carry.
const MaxData = maxData

// ErrWire matches every error about a record that is not as docs/wire.md says.
var ErrWire = errors.New("share: malformed record")

// ErrVersion says that the peer speaks another version of the wire format.
var ErrVersion = errors.New("share: other version of the wire format")

type msgType uint16

const (
	msgAttach   msgType = 1 // consumer → producer: what it wants
	msgOffer    msgType = 2 // producer → consumer: description and descriptors
	msgRefuse   msgType = 3 // either: no, and why
	msgProgress msgType = 4 // either: still at work
	msgMapped   msgType = 5 // consumer → producer: memory is mapped
	msgVerdict  msgType = 6 // consumer → producer: what it found
	msgRevoke   msgType = 7 // producer → consumer: the offer ends
	msgPublish  msgType = 8 // producer → consumer: the data of a pending offer is there
	msgConfirm  msgType = 9 // producer → consumer: the legacy memory that was opened is the one that was offered
)

// A message is the payload of one record.
type message interface {
	kind() msgType
	append(b []byte) []byte
}

type attach struct {
	driver cu.Kind
	access cu.Access
	name   string
}

// offer is one record of an offer: all of them are alike but for the chunks
// whose descriptors come along.
type offer struct {
	desc   vmm.Descriptor
	access cu.Access
	name   string
	data   []byte
	first  int // index of the first chunk in this record
	fds    int // descriptors in this record

	pending bool // the data is not there yet: a publish follows

	legacy *LegacyHandle // instead of descriptors; chunks are 1 and the granularity 0
}

type refuse struct {
	code RefusalCode
	text string
}

// Error makes it the error of who is not admitted.
func (m refuse) Error() string { return fmt.Sprintf("%s: %s", m.code, m.text) }

type progress struct{ done, total uint64 }

type mapped struct{ generation uint64 }

type verdict struct {
	ok   bool
	text string
}

type revoke struct{ text string }

type publish struct{ generation uint64 }

type confirm struct{ generation uint64 }

func (attach) kind() msgType   { return msgAttach }
func (offer) kind() msgType    { return msgOffer }
func (refuse) kind() msgType   { return msgRefuse }
func (progress) kind() msgType { return msgProgress }
func (mapped) kind() msgType   { return msgMapped }
func (verdict) kind() msgType  { return msgVerdict }
func (revoke) kind() msgType   { return msgRevoke }
func (publish) kind() msgType  { return msgPublish }
func (confirm) kind() msgType  { return msgConfirm }

var le = binary.LittleEndian

// encode makes the record of m.
func encode(m message) []byte {
	b := append(make([]byte, 0, 512), magic...)
	b = le.AppendUint16(b, Version)
	b = le.AppendUint16(b, uint16(m.kind()))
	b = le.AppendUint32(b, 0) // flags
	b = le.AppendUint32(b, 0) // length, below
	b = m.append(b)
	le.PutUint32(b[12:], uint32(len(b)-headerSize))
	return b
}

func (m attach) append(b []byte) []byte {
	b = append(b, byte(m.driver), byte(m.access), 0, 0)
	return appendText(b, m.name)
}

func (m offer) append(b []byte) []byte {
	b = append(b, byte(m.desc.Kind), byte(m.access), byte(m.handleType()), bit(m.pending))
	b = le.AppendUint32(b, uint32(m.desc.Chunks))
	b = append(b, m.desc.Device[:]...)
	for _, v := range []uint64{m.desc.Size, m.desc.ChunkSize, m.desc.Granularity, m.desc.Generation} {
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint32(b, uint32(m.first))
	b = le.AppendUint32(b, uint32(m.fds))
	b = le.AppendUint16(b, uint16(len(m.name)))
	b = le.AppendUint16(b, uint16(len(m.data)))
	b = append(append(b, m.name...), m.data...)
	if m.legacy != nil {
		b = append(le.AppendUint64(b, m.legacy.Offset), m.legacy.Handle[:]...)
	}
	return b
}

func (m offer) handleType() HandleType {
	if m.legacy != nil {
		return HandleLegacy
	}
	return HandleFD
}

func (m refuse) append(b []byte) []byte {
	return appendText(le.AppendUint16(b, uint16(m.code)), m.text)
}

func (m progress) append(b []byte) []byte {
	return le.AppendUint64(le.AppendUint64(b, m.done), m.total)
}

func (m mapped) append(b []byte) []byte { return le.AppendUint64(b, m.generation) }

func (m publish) append(b []byte) []byte { return le.AppendUint64(b, m.generation) }

func (m confirm) append(b []byte) []byte { return le.AppendUint64(b, m.generation) }

func bit(yes bool) byte {
	if yes {
		return 1
	}
	return 0
}

func (m verdict) append(b []byte) []byte {
	return appendText(append(b, bit(m.ok), 0), m.text)
}

func (m revoke) append(b []byte) []byte { return appendText(b, m.text) }

// appendText writes a length of two bytes and s, cut to what a receiver takes.
// Bytes that are no UTF-8 are replaced, as the receiver refuses them.
func appendText(b []byte, s string) []byte {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") // less the half of a rune
	}
	return append(le.AppendUint16(b, uint16(len(s))), s...)
}

// A HandleType says what offered memory is opened by.
type HandleType uint8

// The types of handles.
const (
	HandleFD     HandleType = 1 // file descriptors: virtual memory, of package vmm
	HandleLegacy HandleType = 2 // 64 bytes of legacy IPC, see [Legacy]
)

// String gives "vmm" or "legacy".
func (h HandleType) String() string {
	switch h {
	case HandleFD:
		return "vmm"
	case HandleLegacy:
		return "legacy"
	}
	return fmt.Sprintf("HandleType(%d)", uint8(h))
}

// decode reads one record. What it returns holds nothing of record.
func decode(record []byte) (message, error) {
	r := reader{b: record}
	if string(r.take(4)) != magic {
		return nil, fmt.Errorf("%w: it does not begin with %q; the peer is no gpufd program", ErrWire, magic)
	}
	if v := r.u16(); v != Version && !r.short {
		return nil, fmt.Errorf("%w: the peer speaks %d, this program %d", ErrVersion, v, Version)
	}
	typ, flags, length := msgType(r.u16()), r.u32(), r.u32()
	switch {
	case r.short:
		return nil, fmt.Errorf("%w: %d bytes are no header", ErrWire, len(record))
	case flags != 0:
		return nil, fmt.Errorf("%w: unknown flags %#x", ErrWire, flags)
	case uint64(length) != uint64(len(record)-headerSize):
		return nil, fmt.Errorf("%w: it says %d bytes follow the header and %d do", ErrWire, length, len(record)-headerSize)
	}
	m, err := r.message(typ)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: type %d: %w", ErrWire, typ, err)
	case r.short:
		return nil, fmt.Errorf("%w: type %d: too short", ErrWire, typ)
	case len(r.b) > 0:
		return nil, fmt.Errorf("%w: type %d: %d bytes too many", ErrWire, typ, len(r.b))
	}
	return m, nil
}

// A reader takes values off the front of b; one that is not there is zero and
// sets short.
type reader struct {
	b     []byte
	short bool
}

func (r *reader) take(n int) []byte {
	if len(r.b) < n {
		r.short, r.b = true, nil
		return make([]byte, n)
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) u8() uint8   { return r.take(1)[0] }
func (r *reader) u16() uint16 { return le.Uint16(r.take(2)) }
func (r *reader) u32() uint32 { return le.Uint32(r.take(4)) }
func (r *reader) u64() uint64 { return le.Uint64(r.take(8)) }

// flag takes a byte that is 0 or 1.
func (r *reader) flag() (bool, error) {
	v := r.u8()
	if v > 1 {
		return false, fmt.Errorf("%d is neither 0 nor 1", v)
	}
	return v == 1, nil
}

// zero takes n bytes that have to be zero.
func (r *reader) zero(n int) error {
	for _, b := range r.take(n) {
		if b != 0 {
			return errors.New("reserved bytes are not zero")
		}
	}
	return nil
}

// text takes a length and as much UTF-8, for people.
func (r *reader) text(limit int) (string, error) {
	n := int(r.u16())
	if n > limit {
		return "", fmt.Errorf("a text of %d bytes; %d are allowed", n, limit)
	}
	s := string(r.take(n))
	if !utf8.ValidString(s) {
		return "", errors.New("a text that is not UTF-8")
	}
	return s, nil
}

func (r *reader) message(typ msgType) (message, error) {
	switch typ {
	case msgAttach:
		return r.attach()
	case msgOffer:
		return r.offer()
	case msgRefuse:
		code := RefusalCode(r.u16())
		text, err := r.text(maxText)
		return refuse{code, text}, err
	case msgProgress:
		return progress{r.u64(), r.u64()}, nil
	case msgMapped:
		return mapped{r.u64()}, nil
	case msgVerdict:
		return r.verdict()
	case msgRevoke:
		text, err := r.text(maxText)
		return revoke{text}, err
	case msgPublish:
		return publish{r.u64()}, nil
	case msgConfirm:
		return confirm{r.u64()}, nil
	}
	return nil, errors.New("unknown type")
}

func (r *reader) attach() (m attach, err error) {
	m.driver, m.access = cu.Kind(r.u8()), cu.Access(r.u8())
	if err = r.zero(2); err != nil {
		return m, err
	}
	if err = checkAccess(m.access); err != nil {
		return m, err
	}
	if m.name, err = r.text(maxName); err != nil {
		return m, err
	}
	if m.name == "" {
		return m, nil // the only offer there is
	}
	return m, checkName(m.name)
}

func (r *reader) offer() (m offer, err error) {
	m.desc.Kind, m.access = cu.Kind(r.u8()), cu.Access(r.u8())
	handle := HandleType(r.u8())
	if handle != HandleFD && handle != HandleLegacy {
		return m, fmt.Errorf("handles of type %d; %d, file descriptors, and %d, legacy IPC, are known", uint8(handle), HandleFD, HandleLegacy)
	}
	if m.pending, err = r.flag(); err != nil {
		return m, err
	}
	m.desc.Chunks = int(r.u32())
	m.desc.Device = cu.UUID(r.take(16))
	for _, v := range []*uint64{&m.desc.Size, &m.desc.ChunkSize, &m.desc.Granularity, &m.desc.Generation} {
		*v = r.u64()
	}
	m.first, m.fds = int(r.u32()), int(r.u32())
	nameLen, dataLen := int(r.u16()), int(r.u16())
	if nameLen > maxName || dataLen > maxData {
		return m, fmt.Errorf("name of %d bytes and data of %d; %d and %d are allowed", nameLen, dataLen, maxName, maxData)
	}
	m.name = string(r.take(nameLen))
	m.data = append([]byte(nil), r.take(dataLen)...)
	err = errors.Join(checkAccess(m.access), checkName(m.name))
	if handle == HandleLegacy {
		m.legacy = &LegacyHandle{Offset: r.u64(), Handle: cu.IPCHandle(r.take(len(cu.IPCHandle{})))}
		err = errors.Join(err, m.checkLegacy())
	}
	return m, err
}

// checkLegacy finds what an offer of legacy memory cannot be.
func (m offer) checkLegacy() error {
	d, offset := m.desc, m.legacy.Offset
	switch {
	case d.Chunks != 1 || m.first != 0 || m.fds != 0 || d.Granularity != 0:
		return errors.New("legacy memory is one chunk, without descriptors and granularity")
	case m.access != ReadWrite:
		return errors.New("legacy memory cannot be read-only")
	case d.Size == 0 || d.Size > d.ChunkSize || offset > d.ChunkSize-d.Size:
		return fmt.Errorf("%d bytes at %d of an allocation of %d", d.Size, offset, d.ChunkSize)
	}
	return nil
}

func (r *reader) verdict() (m verdict, err error) {
	switch ok := r.u8(); ok {
	case 0, 1:
		m.ok = ok == 1
	default:
		return m, fmt.Errorf("verdict %d", ok)
	}
	if err = r.zero(1); err != nil {
		return m, err
	}
	m.text, err = r.text(maxText)
	return m, err
}

func checkAccess(a cu.Access) error {
	if a != cu.ReadOnly && a != cu.ReadWrite {
		return fmt.Errorf("access %d; %d and %d are known", uint32(a), uint32(cu.ReadOnly), uint32(cu.ReadWrite))
	}
	return nil
}

// checkName refuses names that would be trouble on a terminal.
func checkName(s string) error {
	if s == "" || len(s) > maxName || !utf8.ValidString(s) {
		return fmt.Errorf("offer name of %d bytes; 1 to %d of UTF-8 are allowed", len(s), maxName)
	}
	for _, c := range s {
		if unicode.IsControl(c) {
			return fmt.Errorf("offer name %q holds a control character", s)
		}
	}
	return nil
}
