package channel

// A heldFrame is a frame that was taken and not released.
type heldFrame struct{ number, slot uint64 }

// heldFrames are the n frames that a reader holds, in the order in which it took them. There is room for one in each
// slot.
type heldFrames struct {
	ring      []heldFrame
	oldest, n uint64
}

// at returns the i-th of them, from the oldest, which is 0.
func (h *heldFrames) at(i uint64) *heldFrame {
	if i += h.oldest; i >= uint64(len(h.ring)) {
		i -= uint64(len(h.ring))
	}
	return &h.ring[i]
}

// add appends f. The caller has checked that fewer are held than there are slots.
func (h *heldFrames) add(f heldFrame) {
	*h.at(h.n) = f
	h.n++
}

// find returns where the frame of that number is.
func (h *heldFrames) find(number uint64) (i uint64, ok bool) {
	for i = range h.n {
		if h.at(i).number == number {
			return i, true
		}
	}
	return 0, false
}

// drop removes the i-th. The caller has checked that there is one.
func (h *heldFrames) drop(i uint64) {
	for ; i > 0; i-- {
		*h.at(i) = *h.at(i - 1)
	}
	h.dropOldest()
}

// dropOldest removes the oldest. The caller has checked that one is held.
func (h *heldFrames) dropOldest() {
	if h.oldest++; h.oldest == uint64(len(h.ring)) {
		h.oldest = 0
	}
	h.n--
}
