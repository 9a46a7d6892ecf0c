package wire

import (
	"fmt"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/sock"
)

// Follows checks that m is the record of an offer after prev, or the first. have is how
// many descriptors have come, with those of m.
func (m Offer) Follows(prev Offer, have int) error {
	d := m.Memory
	switch {
	case m.DataSize != 0 && len(m.Data) > 0:
		return fmt.Errorf("%w: an offer with %d bytes of data, and %d that come behind it", ErrMalformed, len(m.Data), m.DataSize)
	case m.Resume != 0:
		return m.checkResume(have)
	case m.Legacy != nil && have == 0:
		return nil // all of it is in one record
	case m.FDs < 1 || m.FDs > sock.MaxFDs || d.Chunks < 1 || d.Chunks > gpumem.MaxChunks:
		return fmt.Errorf("%w: an offer of %d chunks with %d descriptors in a record", ErrMalformed, d.Chunks, m.FDs)
	case have > d.Chunks || m.First != have-m.FDs:
		return fmt.Errorf("%w: descriptors %d to %d of %d, where %d had come", ErrMalformed, m.First, m.First+m.FDs, d.Chunks, have-m.FDs)
	case m.First == 0:
		return nil
	case m.Pending != prev.Pending || d != prev.Memory || m.Access != prev.Access || m.Process != prev.Process || m.Name != prev.Name ||
		m.DataSize != prev.DataSize || m.CursorSize != prev.CursorSize || string(m.Data) != string(prev.Data):
		return fmt.Errorf("%w: the records of an offer contradict each other", ErrMalformed)
	}
	return nil
}

// checkResume checks that m is the one record of an offer to a consumer that has mapped the
// memory.
func (m Offer) checkResume(have int) error {
	if d := m.Memory; m.Resume != d.Generation || m.FDs != 0 || m.First != 0 || have != 0 || m.Legacy != nil {
		return fmt.Errorf("%w: an offer that resumes generation %d is of generation %d, by a %s handle, with %d descriptors from %d on, where %d had come",
			ErrMalformed, m.Resume, d.Generation, m.HandleType(), m.FDs, m.First, have)
	}
	return nil
}

// Descriptors returns how many descriptors come with the record of m.
func Descriptors(m Message) int {
	switch m := m.(type) {
	case Offer:
		return m.FDs
	case Data, Cursors:
		return 1
	}
	return 0
}

// Records makes the records of an offer like m with n descriptors. Each record but the last
// has as many descriptors as fit.
func (m Offer) Records(n int) (records [][]byte) {
	if m.Legacy != nil || m.Resume != 0 {
		return [][]byte{Encode(m)}
	}
	for m.First = 0; m.First < n; m.First += m.FDs {
		m.FDs = min(sock.MaxFDs, n-m.First)
		records = append(records, Encode(m))
	}
	return records
}
