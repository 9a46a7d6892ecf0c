package ptx

import "strings"

// videoVector builds the instructions that end in 2 or 4.
func videoVector(b *builder, o *opcode) {
	lanes := int(o.name[len(o.name)-1] - '0')
	name := o.name[:len(o.name)-1]
	types := o.videoTypes(name)
	f := intOps[name[1:]]
	if name == "vset" {
		f = o.videoComparison()
	}
	v := vectorMode{lanes: lanes, dt: types[0], at: types[1], bt: types[2], f: f, sat: name != "vset" && o.take("sat"), add: o.take("add")}
	b.videoVector(o, v)
}

// A vectorMode is how a vector instruction computes.
type vectorMode struct {
	lanes      int
	dt, at, bt typ
	f          func(a, b int64) int64
	sat, add   bool
	mask       [4]bool    // which lanes are written
	from       [2][4]part // where lanes come from
}

// videoVector takes the operands, each with an order of its parts, and emits.
func (b *builder) videoVector(o *opcode, v vectorMode) {
	v.mask = b.laneMask(o, v.lanes)
	d := b.p.operand(b)
	i := inst{d: b.target(d, v.dt)}
	for k, s := range []*int32{&i.a, &i.b} {
		b.p.expect(",")
		t := []typ{v.at, v.bt}[k]
		v.from[k] = b.laneOrder(o, v.lanes, t, k)
		arg := b.p.operand(b)
		*s = b.source(arg, t)
	}
	b.p.expect(",")
	arg := b.p.operand(b)
	i.c = b.source(arg, v.dt)
	i.run = func(t *thread, i *inst) { t.r[i.d] = v.result(t.r[i.a], t.r[i.b], t.r[i.c]) }
	b.emit(i)
}

// laneDigits takes the digits that say which lanes off the next name, such as .h10 and
// .b3210; nothing where there are none.
func (b *builder) laneDigits(lanes int) string {
	name, suffix, _ := cutLast(b.p.peek().text)
	digits, ok := strings.CutPrefix(suffix, map[int]string{2: "h", 4: "b"}[lanes])
	if !ok || digits == "" {
		return ""
	}
	b.p.ahead[0].text = name
	return digits
}

// laneMask takes which lanes are written off the target: .h10, .b3210 and parts.
func (b *builder) laneMask(o *opcode, lanes int) (mask [4]bool) {
	digits := b.laneDigits(lanes)
	if digits == "" {
		return [4]bool{true, true, true, true}
	}
	for k := range digits {
		n := int(digits[k]) - '0'
		o.refuseIf(n < 0 || n >= lanes || mask[n] || k > 0 && digits[k] > digits[k-1], "this mask")
		mask[n] = true
	}
	return mask
}

// laneOrder takes where the lanes of operand k come from off its name: digits from
// the highest lane on, of which the first are a's parts and the others b's.
func (b *builder) laneOrder(o *opcode, lanes int, t typ, k int) (from [4]part) {
	size, digits := 4/lanes, b.laneDigits(lanes)
	o.refuseIf(digits != "" && len(digits) != lanes, "this order of parts")
	for n := range lanes {
		d := lanes*k + n
		if digits != "" {
			d = int(digits[lanes-1-n]) - '0'
		}
		o.refuseIf(d < 0 || d >= 2*lanes, "this order of parts")
		from[n] = part{t, 8 * size * d, size}
	}
	return from
}

// result computes all lanes. Those that are not written are c's.
func (v vectorMode) result(a, b, c uint64) uint64 {
	both := uint64(uint32(b))<<32 | uint64(uint32(a))
	size := 4 / v.lanes
	out, sum := uint64(0), c
	for n := range v.lanes {
		d := part{v.dt, 8 * size * n, size}
		if !v.mask[n] {
			out |= c & (typ{bitsKind, size}.mask() << d.shift)
			continue
		}
		x := v.f(v.from[0][n].get(both), v.from[1][n].get(both))
		if v.sat {
			x = d.saturate(x)
		}
		sum += uint64(x)
		out = d.put(out, uint64(x))
	}
	if v.add {
		return uint64(uint32(sum))
	}
	return out
}
