package share

// A consumer that knows the memory of a name may wait for newer memory (ATTACH, after). It
// waits behind the offer that it knows, until that has ended or is replaced. Then it asks
// again, like a new consumer, and may have to wait again.

// knows reports whether o, which may be nil, is no newer than what the consumer has.
func (v *visitor) knows(o *offering) bool {
	return o != nil && v.want.After > 0 && o.record.Memory.Generation <= v.want.After
}

// queueBehind makes a consumer that knows the offer wait for newer. It runs with the server's
// mu held.
func (o *offering) queueBehind(v *visitor) *waiter {
	w := newWaiter(v)
	w.knows = o
	o.behind = append(o.behind, w)
	if e := o.server.expected[o.record.Name]; e != nil {
		w.tell(e.step)
	}
	return w
}

// release makes the consumers that wait behind the offer, which may be nil, ask again. It
// runs with the server's mu held.
func (o *offering) release() {
	if o == nil {
		return
	}
	for _, w := range o.behind {
		w.stop(errOffered)
	}
	o.behind = nil
}
