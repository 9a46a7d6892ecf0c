package ptx

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// hashCases is how many operands each of these forms is tried with, of four words
// of eight bytes.
const (
	hashCases = 2048
	hashWords = 4
)

// A hashForm is an instruction, or a few, and the types of result and operands. Those
// that are approximate are compared with a tolerance.
type hashForm struct {
	name   string
	text   string
	types  []string
	approx bool
	gpu    string // a hash of all that an H200 makes of it, the first results of what is approximate, or "refused"
}

//go:embed testdata/h200-hashes.txt
var recordedHashes string

// hashForms are the forms of testdata/h200-hashes.txt. A new one is a line there with
// nothing behind the colon, until it is recorded.
var hashForms = sync.OnceValue(func() (list []hashForm) {
	for form, results := range recorded(recordedHashes) {
		f := newHashForm(form)
		f.gpu = results
		list = append(list, f)
	}
	return list
})

// recorded goes through the lines of a recording.
func recorded(text string) iter.Seq2[string, string] {
	return func(yield func(form, results string) bool) {
		for line := range strings.Lines(text) {
			form, results, _ := strings.Cut(line, ":")
			if !yield(form, strings.TrimSpace(results)) {
				return
			}
		}
	}
}

// newHashForm reads "op types" or "text with $0 … | types"; a ~ before it is for
// what is approximate. The first type is that of the result, $0; those of the up to
// four operands may also be c32, i32 and v32: see operandOf.
func newHashForm(name string) hashForm {
	f := hashForm{name: name}
	rest, approx := strings.CutPrefix(name, "~")
	f.approx = approx
	text, types, ok := strings.Cut(rest, " | ")
	if ok {
		f.text, f.types = text, strings.Fields(types)
		return f
	}
	words := strings.Fields(rest)
	f.types = words[1:]
	f.text = words[0]
	for i := range f.types {
		f.text += map[bool]string{true: ", ", false: " "}[i > 0] + "$" + strconv.Itoa(i)
	}
	f.text += ";"
	return f
}

// bitsOf is how wide a type is.
func bitsOf(t string) int {
	switch {
	case t == "pred":
		return 32
	case strings.HasSuffix(t, "x2"):
		return 32
	case t == "bf16":
		return 16
	}
	n, _ := strconv.Atoi(t[1:])
	return n
}

// kernel is the n-th kernel: each thread loads its operands and stores the result.
func (f hashForm) kernel(n int) string {
	var regs, loads strings.Builder
	text := f.text
	for i, t := range f.types {
		reg := fmt.Sprintf(".b%d", bitsOf(t))
		if t == "pred" || t == "f32" || t == "f64" {
			reg = "." + t
		}
		fmt.Fprintf(&regs, "\t.reg %s %%x%d;\n", reg, i)
		switch {
		case i > 0 && t == "pred":
			fmt.Fprintf(&loads, "\tld.global.u32 %%r1, [%%rd1+%d];\n\tand.b32 %%r1, %%r1, 1;\n\tsetp.ne.u32 %%x%d, %%r1, 0;\n", 8*i-8, i)
		case i > 0:
			fmt.Fprintf(&loads, "\tld.global%s %%x%d, [%%rd1+%d];\n", reg, i, 8*i-8)
		}
		text = strings.ReplaceAll(text, "$"+strconv.Itoa(i), "%x"+strconv.Itoa(i))
	}
	store := fmt.Sprintf("\tst.global.b%d [%%rd2], %%x0;\n", bitsOf(f.types[0]))
	switch f.types[0] {
	case "pred":
		store = "\tselp.u32 %r1, 1, 0, %x0;\n\tst.global.u32 [%rd2], %r1;\n"
	case "f32", "f64":
		store = fmt.Sprintf("\tst.global.%s [%%rd2], %%x0;\n", f.types[0])
	}
	return fmt.Sprintf(`.visible .entry k%d(.param .u64 in, .param .u64 out) {
	.reg .b64 %%rd<5>; .reg .b32 %%r<5>; .reg .pred %%p<3>;
%s	ld.param.u64 %%rd1, [in];
	ld.param.u64 %%rd2, [out];
	mov.u32 %%r2, %%tid.x;
	mov.u32 %%r3, %%ctaid.x;
	mov.u32 %%r4, %%ntid.x;
	mad.lo.u32 %%r2, %%r3, %%r4, %%r2;
	mul.wide.u32 %%rd3, %%r2, %d;
	add.s64 %%rd1, %%rd1, %%rd3;
	mul.wide.u32 %%rd3, %%r2, 8;
	add.s64 %%rd2, %%rd2, %%rd3;
	and.b32 %%r1, %%r2, 1;
	setp.eq.u32 %%p0, %%r1, 0;
%s	%s
%s	ret;
}
`, n, regs.String(), 8*hashWords, loads.String(), text, store)
}

const hashHeader = ".version 8.5\n.target sm_90\n.address_size 64\n"

// edges are the numbers that are special to a type.
func edges(t string) []uint64 {
	switch t {
	case "f32":
		return []uint64{0, 1 << 31, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 0x7f7fffff, 0xff7fffff, 1, 0x80000001, 0x007fffff, 0x807fffff, 0x00800000, 0x80800000, 0x4b000001, 0x3effffff, 0x3f000000, 0x3f7fffff, 0x3f800001, 0x40200000, 0xc0600000, 0x4f000000, 0xcf000000, 0x5f000000, 0x477fe000, 0x477fefff, 0x477ff000, 0x33000000, 0x33000001, 0x38800000, 0x387fe000, 0x43e00000, 0x43e80000, 0x43e80001, 0x3c000000, 0x3a800000, 0x7effffff, 0x7e800001, 0x00400000, 0x0d800000}
	case "f64":
		return []uint64{0, 1 << 63, 0x3ff0000000000000, 0xbff0000000000000, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 0xfff4000000000123, 0x7fefffffffffffff, 0xffefffffffffffff, 1, 1<<63 + 1, 0x000fffffffffffff, 0x8010000000000000, 0x0010000000000000, 0x4004000000000000, 0xc00c000000000000, 0x41e0000000000000, 0xc1e0000000000000, 0x43e0000000000000, 0x43f0000000000000, 0x36a0000000000000, 0x3690000000000000, 0x3690000000000001, 0x47efffffe0000000, 0x47efffffefffffff, 0x47effffff0000000, 0x380fffffffffffff, 0x3810000000000000, 0x40effc0000000000, 0x40effe0000000000, 0x3fdfffffffffffff, 0x3fe0000000000001, 0x3ff0000000000001, 0x3fefffffffffffff}
	case "f16", "f16x2":
		return []uint64{0, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x7fff, 0x7bff, 0xfbff, 1, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x8400, 0x3800, 0x37ff, 0x3bff, 0x3c01, 0x4100, 0xc300, 0x7800, 0xf800, 0x1400, 0x4d00, 0x5640, 0xd640}
	case "bf16", "bf16x2":
		return []uint64{0, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 0x7f81, 0x7fff, 0x7f7f, 0xff7f, 1, 0x8001, 0x007f, 0x807f, 0x0080, 0x8080, 0x3f00, 0x3eff, 0x3f7f, 0x3f81, 0x4020, 0xc060, 0x4f00, 0x4f80, 0x5f00, 0x1000, 0x4300, 0xc300}
	}
	return []uint64{0, 1, 2, 3, 7, 31, 32, 33, 64, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 0x7fffff, 0x800000, 0xffffff, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1<<63 - 1, 1 << 63, 1<<64 - 1, 0xffffffffffff8000, 0xffffffffffffff80}
}

// operandOf makes one operand of a type, the n-th case's.
func operandOf(t string, v, how uint64) uint64 {
	e := edges(t)
	edge := e[v%uint64(len(e))]
	switch t {
	case "c32": // a count or place
		switch how % 8 {
		case 0:
			return v & 0xffffffff
		case 1:
			return edge & 0xffffffff
		}
		return v % 72
	case "i32": // a signed number, small most often
		switch how % 4 {
		case 0:
			return v & 0xffffffff
		case 1:
			return edge & 0xffffffff
		}
		return (v%72 - 36) & 0xffffffff
	case "v32": // bytes, of which some are special
		for k := range 4 {
			if how>>k&1 != 0 {
				b := []uint64{0, 0x7f, 0x80, 0xff, 1}[v>>(8*k)%5]
				v = v&^(0xff<<(8*k)) | b<<(8*k)
			}
		}
		return v & 0xffffffff
	}
	if how%4 < 2 && !strings.HasSuffix(t, "x2") {
		return edge
	}
	switch t {
	case "f32": // numbers of like sizes
		if how%4 == 2 {
			v = v&0x83ffffff | 0x3c000000
		}
	case "f64":
		if how%4 == 2 {
			v = v&0x803fffffffffffff | 0x3fc0000000000000
		}
	case "f16":
		if how%4 == 2 {
			v = v&0x8fff | 0x3000
		}
	case "bf16":
		if how%4 == 2 {
			v = v&0x83ff | 0x3c00
		}
	case "f16x2", "bf16x2":
		one := strings.TrimSuffix(t, "x2")
		return operandOf(one, v, how) | operandOf(one, mix(v), how>>8)<<16
	}
	return v
}

// inputs are those of forms by the types of their operands, which many have in common.
var inputs sync.Map

// input is the operands of every case, which the caller does not change.
func (f hashForm) input() []byte {
	types := strings.Join(f.types[1:], " ")
	known, ok := inputs.Load(types)
	if !ok {
		known, _ = inputs.LoadOrStore(types, slices.Clip(f.newInput()))
	}
	return known.([]byte)
}

func (f hashForm) newInput() []byte {
	seed := uint64(len(f.types))
	for _, t := range f.types[1:] {
		for _, c := range []byte(t) {
			seed = seed*131 + uint64(c)
		}
	}
	next := func() uint64 {
		seed += 0x9e3779b97f4a7c15
		return mix(seed)
	}
	b := make([]byte, 0, 8*hashWords*hashCases)
	for range hashCases {
		var words [hashWords]uint64
		for i, t := range f.types[1:] {
			words[i] = operandOf(t, next(), next())
			if i > 0 && t == f.types[i] && next()%16 == 0 {
				words[i] = words[i-1] // the same, or the contrary
				if bits := bitsOf(t); t[0] != 'u' && t[0] != 's' && next()%2 == 0 {
					words[i] ^= 1 << (bits - 1)
				}
			}
		}
		for _, w := range words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
	}
	return b
}

// soft runs the n-th kernel of a module here.
func (f hashForm) soft(t testing.TB, m *Module, n int) []byte {
	input := f.input()
	memory := append(input, make([]byte, 8*hashCases)...)
	launch(t, m, fmt.Sprintf("k%d", n), memory, hashCases/256, 256, params(uint64(base), uint64(base+8*hashWords*hashCases)))
	return memory[8*hashWords*hashCases:]
}

func hashOf(results []byte) string {
	h := fnv.New64a()
	h.Write(results)
	return fmt.Sprintf("%016x", h.Sum64())
}

// ulps is how many numbers lie between two, of a float type; pairs count the
// worse half. Numbers of different kinds are far apart.
func ulps(t string, a, b uint64) uint64 {
	if strings.HasSuffix(t, "x2") {
		one := strings.TrimSuffix(t, "x2")
		return max(ulps(one, a&0xffff, b&0xffff), ulps(one, a>>16, b>>16))
	}
	l := map[string]*floatFormat{"f16": half, "bf16": brain, "f32": single, "f64": double}[t]
	if a == b {
		return 0
	}
	if l.isNaN(a) || l.isNaN(b) || l.isInf(a) != l.isInf(b) {
		return math.MaxUint32
	}
	place := func(v uint64) int64 {
		if v&l.sign() != 0 {
			return -int64(v &^ l.sign())
		}
		return int64(v)
	}
	d := place(a) - place(b)
	return uint64(max(d, -d))
}
