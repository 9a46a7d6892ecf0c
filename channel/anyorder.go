package channel

// This file has what a writer does where slots come back in any order. All of it runs with mu held.

// lookReleased notes what the reader says that it has given back, or says why that cannot be.
func (m *member) lookReleased() error {
	if m.returned == nil {
		return m.see(m.load(offReleased))
	}
	for slot := range m.at.slots {
		if err := m.seeReturned(slot, m.load(returnedAt(slot))); err != nil {
			return err
		}
	}
	return nil
}

// keepsMost returns the reader that keeps the most slots, and the one of them that has the oldest frame; or nil if none
// keeps any. Of several that keep as many it is the one with the oldest frame.
func (w *Writer) keepsMost() (slot uint64, most *member) {
	var n int
	for _, m := range w.readers {
		count, oldest := m.keeps()
		if count > n || count > 0 && count == n && w.frames[oldest] < w.frames[slot] {
			n, slot, most = count, oldest, m
		}
	}
	return slot, most
}

// keeps returns how many slots the reader keeps, and the one of them that has the oldest frame.
func (q *queue) keeps() (n int, oldest uint64) {
	for slot := range uint64(len(q.inSlot)) {
		if !q.holds(slot) {
			continue
		}
		if n++; n == 1 || q.inSlot[slot] < q.inSlot[oldest] {
			oldest = slot
		}
	}
	return n, oldest
}

// noteSlots notes the words of the slots that the reader keeps.
func (w *Writer) noteSlots(m *member) {
	for slot := range w.slots {
		if m.holds(slot) {
			w.slotWords = append(w.slotWords, slotWord{m, returnedAt(slot), m.returned[slot]})
		}
	}
}
