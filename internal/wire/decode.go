package wire

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/gpumem"
)

// A decoder is a message that is being read.
type decoder interface {
	read(r *reader) error                                       // reads what the table of the type describes
	field(number uint16, value *reader) (known bool, err error) // reads a field behind that
	message() Message
}

// message returns the decoder of type t, or nil if the type is not known.
func (t Type) message() decoder {
	switch t {
	case TypeAttach:
		return &attachDecoder{}
	case TypeOffer:
		return &offerDecoder{}
	case TypeRefuse:
		return &refuseDecoder{}
	case TypeProgress:
		return &progressDecoder{}
	case TypeMapped:
		return &numberDecoder{make: func(g uint64) Message { return Mapped{g} }}
	case TypeVerdict:
		return &verdictDecoder{}
	case TypeRevoke:
		return &revokeDecoder{}
	case TypePublish:
		return &numberDecoder{make: func(g uint64) Message { return Publish{g} }}
	case TypeConfirm:
		return &numberDecoder{make: func(g uint64) Message { return Confirm{g} }}
	case TypeFarewell:
		return &emptyDecoder{m: Farewell{}}
	case TypeList:
		return &emptyDecoder{m: List{}}
	case TypeListed:
		return &listedDecoder{}
	case TypeData:
		return &emptyDecoder{m: Data{}}
	case TypeCursors:
		return &emptyDecoder{m: Cursors{}}
	case TypeNotice:
		return &noticeDecoder{}
	case TypeSuperseded:
		return &numberDecoder{make: func(g uint64) Message { return Superseded{g} }}
	case TypeDetached:
		return &numberDecoder{make: func(keep uint64) Message { return Detached{keep} }}
	}
	return nil
}

type attachDecoder struct{ m Attach }

func (d *attachDecoder) message() Message { return d.m }

func (d *attachDecoder) field(number uint16, value *reader) (known bool, err error) {
	switch number {
	case fieldAfter:
		d.m.After = value.u64()
		return true, nil
	case fieldResume:
		d.m.Resume, err = generation(value)
		return true, err
	case fieldReattach:
		if d.m.Reattach, err = generation(value); d.m.Resume != 0 {
			err = errors.New("a wish to resume and one to reattach")
		}
		return true, err
	}
	if known, err := d.m.Process.field(number, value); known {
		return true, err
	}
	return d.m.Capabilities.field(number, value)
}

func (d *attachDecoder) read(r *reader) (err error) {
	d.m.Driver, d.m.Access = gpumem.Kind(r.u8()), gpumem.Access(r.u8())
	r.take(2) // reserved
	if err = CheckAccess(d.m.Access); err != nil {
		return err
	}
	if d.m.Name, err = r.text(MaxName); err != nil || d.m.Name == "" {
		return err
	}
	return CheckName(d.m.Name)
}

type offerDecoder struct{ m Offer }

func (d *offerDecoder) message() Message { return d.m }

func (d *offerDecoder) field(number uint16, value *reader) (known bool, err error) {
	switch number {
	case fieldDataSize:
		d.m.DataSize = value.u64()
		return true, nil
	case fieldCursorSize:
		d.m.CursorSize = value.u64()
		return true, nil
	case fieldResume:
		d.m.Resume, err = generation(value)
		return true, err
	}
	if known, err := d.m.Process.field(number, value); known {
		return true, err
	}
	return d.m.Capabilities.field(number, value)
}

func (d *offerDecoder) read(r *reader) (err error) {
	m := &d.m
	m.Memory.Kind, m.Access = gpumem.Kind(r.u8()), gpumem.Access(r.u8())
	handle := HandleType(r.u8())
	if handle != HandleFD && handle != HandleLegacy && !r.short {
		return fmt.Errorf("%w: handles of type %d", ErrUnsupported, uint8(handle))
	}
	if m.Pending, err = r.flag(); err != nil {
		return err
	}
	m.Memory.Chunks = int(r.u32())
	m.Memory.Device = gpumem.UUID(r.take(16))
	for _, v := range []*uint64{&m.Memory.Size, &m.Memory.ChunkSize, &m.Memory.Granularity, &m.Memory.Generation} {
		*v = r.u64()
	}
	m.First, m.FDs = int(r.u32()), int(r.u32())
	nameLen, dataLen := int(r.u16()), int(r.u16())
	if nameLen > MaxName || dataLen > MaxData {
		return fmt.Errorf("name of %d bytes and data of %d; %d and %d are allowed", nameLen, dataLen, MaxName, MaxData)
	}
	m.Name = string(r.take(nameLen))
	m.Data = append([]byte(nil), r.take(dataLen)...)
	if handle == HandleLegacy {
		m.Legacy = &gpumem.LegacyHandle{Offset: r.u64(), Handle: gpumem.IPCHandle(r.take(len(gpumem.IPCHandle{})))}
		err = m.checkLegacy()
	}
	return errors.Join(CheckAccess(m.Access), CheckName(m.Name), err)
}

// checkLegacy returns what is wrong with an offer of legacy memory, or nil.
func (m Offer) checkLegacy() error {
	d, offset := m.Memory, m.Legacy.Offset
	switch {
	case d.Chunks != 1 || m.First != 0 || m.FDs != 0 || d.Granularity != 0:
		return errors.New("legacy memory is one chunk, without descriptors and granularity")
	case m.Access != gpumem.ReadWrite:
		return errors.New("legacy memory cannot be read-only")
	case d.Size == 0 || d.Size > d.ChunkSize || offset > d.ChunkSize-d.Size:
		return fmt.Errorf("%d bytes at %d of an allocation of %d", d.Size, offset, d.ChunkSize)
	}
	return nil
}

type refuseDecoder struct {
	noFields
	m Refuse
}

func (d *refuseDecoder) message() Message { return d.m }

func (d *refuseDecoder) read(r *reader) (err error) {
	d.m.Code = RefusalCode(r.u16())
	d.m.Text, err = r.text(MaxText)
	return err
}

type progressDecoder struct{ m Progress }

func (d *progressDecoder) message() Message { return d.m }

func (d *progressDecoder) field(number uint16, value *reader) (bool, error) {
	return d.m.Capabilities.field(number, value)
}

func (d *progressDecoder) read(r *reader) error {
	d.m.Done, d.m.Total = r.u64(), r.u64()
	return nil
}

type verdictDecoder struct {
	noFields
	m Verdict
}

func (d *verdictDecoder) message() Message { return d.m }

func (d *verdictDecoder) read(r *reader) (err error) {
	if d.m.OK, err = r.flag(); err != nil {
		return fmt.Errorf("verdict: %w", err)
	}
	r.take(1) // reserved
	d.m.Text, err = r.text(MaxText)
	return err
}

type revokeDecoder struct{ m Revoke }

func (d *revokeDecoder) message() Message { return d.m }

func (d *revokeDecoder) read(r *reader) (err error) {
	d.m.Text, err = r.text(MaxText)
	return err
}

func (d *revokeDecoder) field(number uint16, value *reader) (known bool, err error) {
	if number != fieldReason {
		return false, nil
	}
	d.m.Reason = EndReason(value.u64())
	return true, nil
}

// emptyDecoder reads a message without a body.
type emptyDecoder struct {
	noFields
	m Message
}

func (d *emptyDecoder) message() Message { return d.m }
func (*emptyDecoder) read(*reader) error { return nil }

type noticeDecoder struct {
	noFields
	m Notice
}

func (d *noticeDecoder) message() Message { return d.m }

func (d *noticeDecoder) read(r *reader) error {
	n := int(r.u16())
	if n > MaxNotice {
		return fmt.Errorf("a notice of %d bytes; %d are allowed", n, MaxNotice)
	}
	d.m.Data = bytes.Clone(r.take(n))
	return nil
}

// numberDecoder reads a message that holds only a number.
type numberDecoder struct {
	noFields
	make   func(number uint64) Message
	number uint64
}

func (d *numberDecoder) message() Message { return d.make(d.number) }

func (d *numberDecoder) read(r *reader) error {
	d.number = r.u64()
	return nil
}
