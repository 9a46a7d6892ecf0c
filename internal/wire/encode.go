package wire

import "strings"

func (m Attach) append(b []byte) []byte {
	b = append(b, byte(m.Driver), byte(m.Access), 0, 0)
	b = m.Process.append(m.Capabilities.append(appendText(b, m.Name)))
	b = appendNumber(appendNumber(b, fieldAfter, m.After), fieldResume, m.Resume)
	return appendNumber(b, fieldReattach, m.Reattach)
}

func (m Offer) append(b []byte) []byte {
	d := m.Memory
	b = append(b, byte(d.Kind), byte(m.Access), byte(m.HandleType()), bit(m.Pending))
	b = le.AppendUint32(b, uint32(d.Chunks))
	b = append(b, d.Device[:]...)
	for _, v := range []uint64{d.Size, d.ChunkSize, d.Granularity, d.Generation} {
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint32(b, uint32(m.First))
	b = le.AppendUint32(b, uint32(m.FDs))
	b = le.AppendUint16(b, uint16(len(m.Name)))
	b = le.AppendUint16(b, uint16(len(m.Data)))
	b = append(append(b, m.Name...), m.Data...)
	if m.Legacy != nil {
		b = append(le.AppendUint64(b, m.Legacy.Offset), m.Legacy.Handle[:]...)
	}
	b = m.Process.append(m.Capabilities.append(b))
	b = appendNumber(appendNumber(b, fieldDataSize, m.DataSize), fieldCursorSize, m.CursorSize)
	return appendNumber(b, fieldResume, m.Resume)
}

func (m Refuse) append(b []byte) []byte {
	return appendText(le.AppendUint16(b, uint16(m.Code)), m.Text)
}

func (m Progress) append(b []byte) []byte {
	return m.Capabilities.append(le.AppendUint64(le.AppendUint64(b, m.Done), m.Total))
}

func (m Revoke) append(b []byte) []byte {
	return appendNumber(appendText(b, m.Text), fieldReason, uint64(m.Reason))
}

func (m Verdict) append(b []byte) []byte { return appendText(append(b, bit(m.OK), 0), m.Text) }
func (m Mapped) append(b []byte) []byte  { return le.AppendUint64(b, m.Generation) }
func (m Publish) append(b []byte) []byte { return le.AppendUint64(b, m.Generation) }
func (m Confirm) append(b []byte) []byte { return le.AppendUint64(b, m.Generation) }
func (List) append(b []byte) []byte      { return b }
func (Data) append(b []byte) []byte      { return b }
func (Cursors) append(b []byte) []byte   { return b }
func (Farewell) append(b []byte) []byte  { return b }
func (Unknown) append(b []byte) []byte   { return b }

func (m Notice) append(b []byte) []byte {
	return append(le.AppendUint16(b, uint16(len(m.Data))), m.Data...)
}

func (m Superseded) append(b []byte) []byte { return le.AppendUint64(b, m.Generation) }
func (m Detached) append(b []byte) []byte   { return le.AppendUint64(b, m.Keep) }

func (m Listed) append(b []byte) []byte {
	b = le.AppendUint32(b, uint32(m.Left))
	b = append(le.AppendUint16(b, uint16(len(m.Offers))), 0, 0)
	for _, l := range m.Offers {
		b = le.AppendUint16(b, uint16(l.size()))
		b = append(b, byte(l.Driver), byte(l.Access), byte(l.Handle), bit(l.Pending))
		b = append(b, l.Device[:]...)
		for _, v := range []uint64{l.Size, l.Generation, l.DataSize} {
			b = le.AppendUint64(b, v)
		}
		b = append(le.AppendUint16(b, uint16(len(l.Name))), l.Name...)
		if l.Counts.Told {
			b = le.AppendUint32(le.AppendUint32(b, l.Counts.Leases), l.Counts.Slots)
		}
	}
	return b
}

func bit(yes bool) byte {
	if yes {
		return 1
	}
	return 0
}

// appendText writes a length of two bytes and s, cut to what a receiver takes. It
// replaces bytes that are not UTF-8, because a receiver refuses them.
func appendText(b []byte, s string) []byte {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) > MaxText {
		s = strings.ToValidUTF8(s[:MaxText], "") // less the half of a rune
	}
	return append(le.AppendUint16(b, uint16(len(s))), s...)
}
