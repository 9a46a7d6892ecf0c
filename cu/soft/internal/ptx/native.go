package ptx

import (
	"encoding/binary"
	"fmt"
)

// A nativeFunction is one that the device brings: what a module declares of it,
// and what it does with its arguments.
type nativeFunction struct {
	result int   // bytes; 0 is none
	params []int // bytes
	run    func(t *thread, args []uint64) uint64
}

var natives = map[string]nativeFunction{
	"vprintf":      {4, []int{8, 8}, nativePrint},
	"__assertfail": {0, []int{8, 8, 4, 8, 8}, nativeAssert},
	"malloc":       {8, []int{8}, nativeAlloc},
	"free":         {0, []int{8}, nativeFree},
}

// native makes the call of a function that is declared and not defined.
func native(o *opcode, f *function, in, out []transfer) run {
	n, ok := natives[f.name]
	failIf(!ok, o.line, "there is no function %s", f.name)
	same := len(in) == len(n.params) && len(out) == min(n.result, 1)
	for k := range min(len(in), len(n.params)) {
		same = same && in[k].size == n.params[k]
	}
	failIf(!same || len(out) > 0 && out[0].size != n.result, o.line, "%s is not declared as it is", f.name)
	return func(t *thread, _ *inst) {
		args := make([]uint64, len(in))
		for k, m := range in {
			args[k] = getters[m.size](t.local[t.frame+m.from:])
		}
		v := n.run(t, args)
		t.rest()
		for _, m := range out {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], v)
			copy(t.local[t.frame+m.to:t.frame+m.to+uint64(m.size)], b[:])
		}
	}
}

// maxString is how long a string of a kernel's may be.
const maxString = 1 << 16

// text reads a string up to its zero; ok is false if the thread has failed.
func (t *thread) text(address uint64) (s string, ok bool) {
	var b []byte
	for len(b) < maxString {
		m := t.at(generic, address, 1, false)
		if m == nil {
			return "", false
		}
		if m[0] == 0 {
			break
		}
		b = append(b, m[0])
		address++
	}
	return string(b), true
}

// nativePrint returns the number of the arguments, as the GPU does.
func nativePrint(t *thread, args []uint64) uint64 {
	if args[0] == 0 {
		return 0xffffffff
	}
	format, ok := t.text(args[0])
	if !ok {
		return 0
	}
	p := printer{t: t, args: args[1]}
	p.print(format)
	if l := t.block.launch; t.fault == nil && l.Stdout != nil {
		l.says.Lock()
		defer l.says.Unlock()
		_, _ = l.Stdout.Write(p.out)
	}
	return uint64(p.count)
}

func nativeAssert(t *thread, args []uint64) uint64 {
	var texts [3]string
	for k, n := range []int{0, 1, 3} {
		var ok bool
		if texts[k], ok = t.text(args[n]); !ok {
			return 0
		}
	}
	if l := t.block.launch; l.Stderr != nil {
		l.says.Lock()
		b, h := t.block.id, t.tid
		_, _ = fmt.Fprintf(l.Stderr, "%s:%d: %s: block: [%d,%d,%d], thread: [%d,%d,%d] Assertion `%s` failed.\n",
			texts[1], uint32(args[2]), texts[2], b[0], b[1], b[2], h[0], h[1], h[2], texts[0])
		l.says.Unlock()
	}
	t.fail(Assert, 0)
	return 0
}

func nativeAlloc(t *thread, args []uint64) uint64 {
	if h := t.block.launch.Heap; h != nil && args[0] > 0 {
		return h.alloc(args[0])
	}
	return 0
}

func nativeFree(t *thread, args []uint64) uint64 {
	if h := t.block.launch.Heap; args[0] != 0 && (h == nil || !h.free(args[0])) {
		t.fail(IllegalAddress, args[0])
	}
	return 0
}

// sleep builds nanosleep, which takes no time here.
func sleep(b *builder, o *opcode) {
	t := o.only(tu32)
	b.emit(inst{run: runNothing, a: b.source(b.p.operand(b), t)})
}

func runBreakpoint(t *thread, _ *inst) { t.fail(Breakpoint, 0) }

// allocate builds alloca: room behind the function's frame until it returns.
func allocate(b *builder, o *opcode) {
	t := o.only(tu64)
	args := b.arguments(2)
	i := inst{d: b.target(args[0], t), a: b.source(args[1], t)}
	align := uint64(16)
	if b.p.accept(",") {
		n := b.p.alignment()
		align = max(align, uint64(n))
	}
	b.f.allocas = true
	i.run = func(t *thread, i *inst) {
		at := alignUp(t.frame+uint64(t.fn.frame)+t.extra, align)
		end := at + t.r[i.a]
		if end < at || !t.grow(end, t.fn) {
			t.fail(StackOverflow, 0)
			return
		}
		t.extra = end - t.frame - uint64(t.fn.frame)
		t.r[i.d] = at
	}
	b.emit(i)
}

// saveStack and restoreStack give back what alloca has taken since.
func saveStack(b *builder, o *opcode) {
	t := o.only(tu64)
	b.emit(inst{run: func(t *thread, i *inst) { t.r[i.d] = t.extra }, d: b.target(b.p.operand(b), t)})
}

func restoreStack(b *builder, o *opcode) {
	t := o.only(tu64)
	b.emit(inst{run: func(t *thread, i *inst) { t.extra = min(t.extra, t.r[i.a]) }, a: b.source(b.p.operand(b), t)})
}
