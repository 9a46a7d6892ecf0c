package ptx

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
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

// A form is an instruction, or a few, and the types of result and operands. Those
// that are approximate are compared with a tolerance.
type hashForm struct {
	name   string
	text   string
	types  []string
	approx bool
}

// hashForms are the forms whose results on an H200 are stored as hashes.
func hashForms() (list []hashForm) {
	add := func(format string, args ...any) { list = append(list, newHashForm(fmt.Sprintf(format, args...))) }
	floatForms(add)
	smallForms(add)
	bitForms(add)
	carryForms(add)
	castForms(add)
	videoForms(add)
	rareForms(add)
	approxForms(add)
	return list
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

type adder func(format string, args ...any)

func floatForms(add adder) {
	for _, r := range []string{"rz", "rm", "rp"} {
		for _, t := range []string{"f32", "f64"} {
			mods := []string{""}
			if t == "f32" {
				mods = []string{"", ".ftz", ".sat", ".ftz.sat"}
			}
			for _, m := range mods {
				for _, op := range []string{"add", "sub", "mul"} {
					add("%s.%s%s.%s %s %s %s", op, r, m, t, t, t, t)
				}
				add("fma.%s%s.%s %s %s %s %s", r, m, t, t, t, t, t)
				if !strings.Contains(m, "sat") {
					add("div.%s%s.%s %s %s %s", r, m, t, t, t, t)
					add("rcp.%s%s.%s %s %s", r, m, t, t, t)
					add("sqrt.%s%s.%s %s %s", r, m, t, t, t)
				}
			}
			add("mad.%s.%s %s %s %s %s", r, t, t, t, t, t)
		}
	}
	for _, m := range []string{"", ".ftz", ".sat", ".ftz.sat"} {
		for _, op := range []string{"add", "sub", "mul", "add.rn", "sub.rn", "mul.rn"} {
			add("%s%s.f32 f32 f32 f32", op, m)
		}
		add("fma.rn%s.f32 f32 f32 f32 f32", m)
		add("mad.rn%s.f32 f32 f32 f32 f32", m)
	}
	for _, m := range []string{"", ".ftz"} {
		add("div.rn%s.f32 f32 f32 f32", m)
		add("rcp.rn%s.f32 f32 f32", m)
		add("sqrt.rn%s.f32 f32 f32", m)
		add("neg%s.f32 f32 f32", m)
		add("abs%s.f32 f32 f32", m)
		for _, op := range []string{"min", "max"} {
			for _, n := range []string{"", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"} {
				add("%s%s%s.f32 f32 f32 f32", op, m, n)
			}
			add("%s%s.f32 f32 f32 f32 f32", op, m)
		}
		for _, c := range strings.Fields("eq ne lt le gt ge equ neu ltu leu gtu geu num nan") {
			add("setp.%s%s.f32 pred f32 f32", c, m)
		}
		add("slct%s.u32.f32 u32 u32 u32 f32", m)
		add("slct%s.f64.f32 f64 f64 f64 f32", m)
	}
	for _, op := range []string{"add.rn", "sub.rn", "mul.rn", "div.rn"} {
		add("%s.f64 f64 f64 f64", op)
	}
	add("fma.rn.f64 f64 f64 f64 f64")
	add("mad.rn.f64 f64 f64 f64 f64")
	for _, op := range []string{"rcp.rn", "sqrt.rn", "neg", "abs"} {
		add("%s.f64 f64 f64", op)
	}
	for _, op := range []string{"min", "max"} {
		add("%s.f64 f64 f64 f64", op)
	}
	for _, t := range []string{"f32", "f64"} {
		add("copysign.%s %s %s %s", t, t, t, t)
		for _, c := range strings.Fields("finite infinite number notanumber normal subnormal") {
			add("testp.%s.%s pred %s", c, t, t)
		}
		add("slct.%s.s32 %s %s %s u32", t, t, t, t)
		add("set.lt.u32.%s u32 %s %s", t, t, t)
		add("set.neu.f32.%s f32 %s %s", t, t, t)
	}
	add("slct.b16.s32 u16 u16 u16 u32")
	add("slct.u64.s32 u64 u64 u64 u32")
	add("slct.s32.f32 u32 u32 u32 f32")
}

func smallForms(add adder) {
	for _, t := range []string{"f16", "f16x2", "bf16", "bf16x2"} {
		ftz := []string{"", ".ftz"}
		sat := []string{"", ".sat"}
		for _, m := range ftz {
			for _, s := range sat {
				for _, op := range []string{"add", "sub", "mul", "add.rn", "sub.rn", "mul.rn"} {
					add("%s%s%s.%s %s %s %s", op, m, s, t, t, t, t)
				}
				add("fma.rn%s%s.%s %s %s %s %s", m, s, t, t, t, t, t)
			}
			add("fma.rn%s.relu.%s %s %s %s %s", m, t, t, t, t, t)
			add("neg%s.%s %s %s", m, t, t, t)
			add("abs%s.%s %s %s", m, t, t, t)
			for _, op := range []string{"min", "max"} {
				for _, n := range []string{"", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"} {
					add("%s%s%s.%s %s %s %s", op, m, n, t, t, t, t)
				}
			}
		}
		for _, c := range strings.Fields("eq ne lt le gt ge equ neu ltu leu gtu geu num nan") {
			if strings.HasSuffix(t, "x2") {
				add("setp.%s.%s %%p1|%%p2, $1, $2; selp.u32 $0, 1, 0, %%p1; @%%p2 add.u32 $0, $0, 2; | u32 %s %s", c, t, t, t)
				add("set.%s.%s.%s %s %s %s", c, t, t, t, t, t)
				add("set.%s.u32.%s u32 %s %s", c, t, t, t)
			} else {
				add("setp.%s.%s pred %s %s", c, t, t, t)
				add("set.%s.%s.%s %s %s %s", c, t, t, t, t, t)
				add("set.%s.u32.%s u32 %s %s", c, t, t, t)
			}
		}
		if strings.HasSuffix(t, "x2") {
			add("setp.lt.ftz.%s %%p1|%%p2, $1, $2; selp.u32 $0, 1, 0, %%p1; @%%p2 add.u32 $0, $0, 2; | u32 %s %s", t, t, t)
			add("setp.ne.u32 %%p0, $3, 0; setp.lt.and.%s %%p1|%%p2, $1, $2, !%%p0; selp.u32 $0, 1, 0, %%p1; @%%p2 add.u32 $0, $0, 2; | u32 %s %s c32", t, t, t)
			add("set.gt.s32.%s u32 %s %s", t, t, t)
			add("set.gt.ftz.%s.%s %s %s %s", t, t, t, t, t)
		} else {
			add("setp.lt.ftz.%s pred %s %s", t, t, t)
			add("set.lt.ftz.u16.%s u16 %s %s", t, t, t)
			add("set.lt.s16.%s u16 %s %s", t, t, t)
			add("set.lt.s32.%s u32 %s %s", t, t, t)
			add("set.lt.f32.%s f32 %s %s", t, t, t)
			add("set.lt.%s.f32 %s f32 f32", t, t)
			add("set.lt.%s.f64 %s f64 f64", t, t)
			add("set.lt.%s.s32 %s u32 u32", t, t)
			add("set.lt.%s.u16 %s u16 u16", t, t)
			add("selp.b16 $0, $1, $2, %%p0; | %s %s %s", t, t, t)
		}
	}
}

func bitForms(add adder) {
	for _, t := range []string{"u32", "s32"} {
		add("mul24.lo.%s %s %s %s", t, t, t, t)
		add("mul24.hi.%s %s %s %s", t, t, t, t)
		add("mad24.lo.%s %s %s %s %s", t, t, t, t, t)
		add("mad24.hi.%s %s %s %s %s", t, t, t, t, t)
		for _, u := range []string{"u32", "s32"} {
			add("dp4a.%s.%s u32 v32 v32 u32", t, u)
			add("dp2a.lo.%s.%s u32 v32 v32 u32", t, u)
			add("dp2a.hi.%s.%s u32 v32 v32 u32", t, u)
		}
		for _, m := range []string{"clamp", "wrap"} {
			add("szext.%s.%s %s %s c32", m, t, t, t)
		}
	}
	for _, t := range []string{"u16", "s16", "u32", "s32"} {
		wide := map[string]string{"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}[t]
		add("mul.wide.%s %s %s %s", t, wide, t, t)
		add("mad.wide.%s %s %s %s %s", t, wide, t, t, wide)
	}
	add("selp.f32 $0, $1, $2, %%p0; | f32 f32 f32")
	add("selp.f64 $0, $1, $2, %%p0; | f64 f64 f64")
	add("mad24.hi.sat.s32 s32 s32 s32 s32")
	add("mad.hi.sat.s32 s32 s32 s32 s32")
	for _, t := range []string{"u16", "s16", "u32", "s32", "u64", "s64"} {
		add("sad.%s %s %s %s %s", t, t, t, t, t)
		for _, op := range []string{"add", "sub", "mul.lo", "mul.hi", "min", "max"} {
			add("%s.%s %s %s %s", op, t, t, t, t)
		}
		for _, op := range []string{"div", "rem"} { // by no zero, which leaves the result open
			add("or.b%s $2, $2, 1; %s.%s $0, $1, $2; | %s %s %s", t[1:], op, t, t, t, t)
		}
		add("mad.lo.%s %s %s %s %s", t, t, t, t, t)
		add("mad.hi.%s %s %s %s %s", t, t, t, t, t)
		add("shr.%s %s %s c32", t, t, t)
	}
	for _, t := range []string{"u32", "s32", "u64", "s64"} {
		add("bfe.%s %s %s c32 c32", t, t, t)
		add("bfind.%s u32 %s", t, t)
		add("bfind.shiftamt.%s u32 %s", t, t)
	}
	for _, t := range []string{"b32", "b64"} {
		add("bfi.%s $0, $1, $2, $3, $4; | %s %s %s c32 c32", t, t, t, t)
		add("popc.%s u32 %s", t, t)
		add("clz.%s u32 %s", t, t)
		add("brev.%s %s %s", t, t, t)
		add("cnot.%s %s %s", t, t, t)
	}
	for _, t := range []string{"b16", "b32", "b64"} {
		add("shl.%s %s %s c32", t, t, t)
	}
	add("fns.b32 $0, $1, $2, $3; | u32 u32 c32 i32")
	add("bmsk.clamp.b32 u32 c32 c32")
	add("bmsk.wrap.b32 u32 c32 c32")
	for _, d := range []string{"l", "r"} {
		for _, m := range []string{"clamp", "wrap"} {
			add("shf.%s.%s.b32 u32 u32 u32 c32", d, m)
		}
	}
	for _, m := range []string{"", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"} {
		add("prmt.b32%s u32 u32 u32 u32", m)
	}
	for _, n := range []int{0, 1, 0x17, 0x80, 0x96, 0xac, 0xe8, 0xf0, 0xfe, 0xff} {
		add("lop3.b32 $0, $1, $2, $3, %d; | u32 u32 u32 u32", n)
	}
	for _, t := range []string{"u16x2", "s16x2"} {
		for _, op := range []string{"add", "min", "max"} {
			add("%s.%s u32 v32 v32", op, t)
		}
	}
	for _, op := range []string{"min", "max"} {
		add("%s.relu.s16x2 u32 v32 v32", op)
		add("%s.s16x2.relu u32 v32 v32", op)
		add("%s.relu.s32 u32 u32 u32", op)
		add("%s.s32.relu u32 u32 u32", op)
	}
	add("add.sat.s32 s32 s32 s32")
	add("sub.sat.s32 s32 s32 s32")
}

func carryForms(add adder) {
	for _, t := range []string{"u32", "s32", "u64", "s64"} {
		b := t[1:]
		add("add.cc.%s $0, $1, $2; addc.%s $0, $3, 0; | %s %s %s %s", t, t, t, t, t, t)
		add("add.cc.%s $0, $1, $2; addc.cc.%s $0, $3, $4; addc.u%s $0, $0, $0; | %s %s %s %s %s", t, t, b, t, t, t, t, t)
		add("sub.cc.%s $0, $1, $2; subc.%s $0, $3, 0; | %s %s %s %s", t, t, t, t, t, t)
		add("sub.cc.%s $0, $1, $2; subc.cc.%s $0, $3, $4; subc.u%s $0, $0, 5; | %s %s %s %s %s", t, t, b, t, t, t, t, t)
		for _, h := range []string{"lo", "hi"} {
			add("mad.%s.cc.%s $0, $1, $2, $3; addc.%s $0, $4, $4; | %s %s %s %s %s", h, t, t, t, t, t, t, t)
			add("add.cc.%s $0, $1, $4; madc.%s.%s $0, $1, $2, $3; | %s %s %s %s %s", t, h, t, t, t, t, t, t)
			add("add.cc.%s $0, $1, $4; madc.%s.cc.%s $0, $1, $2, $3; addc.%s $0, $1, $2; | %s %s %s %s %s", t, h, t, t, t, t, t, t, t)
		}
	}
}

func castForms(add adder) {
	ints := []string{"u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"}
	reg := func(t string) string {
		if strings.HasSuffix(t, "8") {
			return t[:1] + "16"
		}
		return t
	}
	for _, f := range []string{"f16", "bf16", "f32", "f64"} {
		for _, i := range ints {
			for _, r := range []string{"rn", "rz", "rm", "rp"} {
				add("cvt.%s.%s.%s %s %s", r, f, i, f, reg(i))
			}
			for _, r := range []string{"rni", "rzi", "rmi", "rpi"} {
				add("cvt.%s.%s.%s %s %s", r, i, f, reg(i), f)
			}
		}
		for _, r := range []string{"rni", "rzi", "rmi", "rpi"} {
			add("cvt.%s.%s.%s %s %s", r, f, f, f, f)
			add("cvt.%s.sat.%s.%s %s %s", r, f, f, f, f)
		}
	}
	for _, i := range []string{"u16", "s32", "u64"} {
		add("cvt.rn.sat.f32.%s f32 %s", i, i)
		add("cvt.rn.ftz.f32.%s f32 %s", i, i)
		add("cvt.rn.sat.f16.%s f16 %s", i, i)
		add("cvt.rzi.ftz.%s.f32 %s f32", i, i)
		add("cvt.rzi.sat.%s.f32 %s f32", i, i)
		add("cvt.rni.sat.%s.f64 %s f64", i, i)
		add("cvt.rzi.sat.%s.f16 %s f16", i, i)
	}
	floats := []string{"f16", "bf16", "f32", "f64"}
	for _, to := range floats {
		for _, from := range floats {
			for _, r := range []string{"", ".rn", ".rz", ".rm", ".rp", ".rna"} {
				for _, m := range []string{"", ".sat", ".ftz", ".ftz.sat", ".relu", ".satfinite", ".relu.satfinite", ".satfinite.relu"} {
					if (m == ".relu" || strings.HasPrefix(m, ".re") || strings.HasPrefix(m, ".satf")) && (from != "f32" || r != ".rn" && r != ".rz") {
						continue
					}
					if to == from && r != "" {
						continue
					}
					add("cvt%s%s.%s.%s %s %s", r, m, to, from, to, from)
				}
			}
		}
	}
	for _, r := range []string{"rna", "rn", "rz"} {
		for _, m := range []string{"", ".satfinite", ".relu", ".satfinite.relu"} {
			add("cvt.%s%s.tf32.f32 u32 f32", r, m)
		}
	}
	for _, t := range []string{"f16x2", "bf16x2"} {
		for _, r := range []string{"rn", "rz", "rm", "rna"} {
			for _, m := range []string{"", ".relu", ".satfinite", ".relu.satfinite", ".satfinite.relu"} {
				add("cvt.%s%s.%s.f32 u32 f32 f32", r, m, t)
			}
		}
	}
	for _, t := range []string{"e4m3x2", "e5m2x2"} {
		for _, m := range []string{"", ".relu"} {
			add("cvt.rn.satfinite%s.%s.f32 u16 f32 f32", m, t)
			add("cvt.rn.satfinite%s.%s.f16x2 u16 f16x2", m, t)
			add("cvt.rn%s.f16x2.%s u32 u16", m, t)
		}
		add("cvt.rn.%s.f32 u16 f32 f32", t)
	}
	for _, t := range []string{"u16", "s16"} {
		add("cvt.pack.sat.%s.s32 u32 i32 i32", t)
	}
	for _, t := range []string{"u8", "s8"} {
		add("cvt.pack.sat.%s.s32.b32 u32 i32 i32 u32", t)
	}
}

func videoForms(add adder) {
	types := []string{"u32", "s32"}
	for _, d := range types {
		for _, a := range types {
			for _, b := range types {
				for _, op := range []string{"vadd", "vsub", "vabsdiff", "vmin", "vmax"} {
					for _, s := range []string{"", ".sat"} {
						add("%s.%s.%s.%s%s u32 v32 v32", op, d, a, b, s)
						add("%s.%s.%s.%s%s $0.b1, $1.b2, $2.h1, $3; | u32 v32 v32 v32", op, d, a, b, s)
						add("%s.%s.%s.%s%s.add $0, $1.b0, $2.b3, $3; | u32 v32 v32 v32", op, d, a, b, s)
						for _, n := range []string{"2", "4"} {
							add("%s%s.%s.%s.%s%s u32 v32 v32 v32", op, n, d, a, b, s)
						}
					}
					add("%s.%s.%s.%s.min $0, $1.h0, $2.h1, $3; | u32 v32 v32 v32", op, d, a, b)
					add("%s.%s.%s.%s.max $0, $1, $2.b1, $3; | u32 v32 v32 v32", op, d, a, b)
					add("%s2.%s.%s.%s.add u32 v32 v32 v32", op, d, a, b)
					add("%s4.%s.%s.%s.add u32 v32 v32 v32", op, d, a, b)
				}
				for _, n := range []string{"2", "4"} {
					for _, s := range []string{"", ".sat", ".add"} {
						add("vavrg%s.%s.%s.%s%s u32 v32 v32 v32", n, d, a, b, s)
					}
				}
				for _, m := range []string{"", ".sat", ".shr7", ".sat.shr7", ".shr15", ".sat.shr15"} {
					add("vmad.%s.%s.%s%s $0, $1, $2, $3; | u32 v32 v32 v32", d, a, b, m)
					add("vmad.%s.%s.%s%s $0, -$1.h0, $2.b3, $3; | u32 v32 v32 v32", d, a, b, m)
					add("vmad.%s.%s.%s%s $0, $1.b1, $2.h1, -$3; | u32 v32 v32 v32", d, a, b, m)
					add("vmad.%s.%s.%s.po%s $0, $1, $2.h0, $3; | u32 v32 v32 v32", d, a, b, m)
				}
			}
			for _, op := range []string{"vshl", "vshr"} {
				for _, m := range []string{".clamp", ".wrap"} {
					for _, s := range []string{"", ".sat"} {
						add("%s.%s.%s.u32%s%s u32 v32 c32", op, d, a, s, m)
						add("%s.%s.%s.u32%s%s.add $0, $1.h1, $2.b0, $3; | u32 v32 c32 v32", op, d, a, s, m)
					}
				}
			}
			for _, c := range []string{"eq", "ne", "lt", "le", "gt", "ge"} {
				add("vset.%s.%s.%s u32 v32 v32", d, a, c)
				add("vset.%s.%s.%s $0.h1, $1.b0, $2.b3, $3; | u32 v32 v32 v32", d, a, c)
				add("vset.%s.%s.%s.add $0, $1.b0, $2.b3, $3; | u32 v32 v32 v32", d, a, c)
				add("vset2.%s.%s.%s u32 v32 v32 v32", d, a, c)
				add("vset4.%s.%s.%s u32 v32 v32 v32", d, a, c)
				add("vset4.%s.%s.%s.add u32 v32 v32 v32", d, a, c)
			}
		}
	}
	add("vadd2.u32.u32.u32 $0.h1, $1.h21, $2.h03, $3; | u32 v32 v32 v32")
	add("vsub4.s32.s32.u32 $0.b20, $1.b7310, $2.b2465, $3; | u32 v32 v32 v32")
	add("vabsdiff4.u32.u32.u32.add $0.b321, $1.b0123, $2.b4567, $3; | u32 v32 v32 v32")
}

// rareForms are conversions that clamp what cannot be too large, and video
// instructions that PTX has and nvcc does not make.
func rareForms(add adder) {
	add("cvt.rn.sat.f64.s32 f64 u32")
	add("cvt.rn.sat.f64.u64 f64 u64")
	add("vshl.u32.u32.u32.clamp.min $0, $1, $2, $3; | u32 v32 c32 v32")
	add("vshr.s32.s32.u32.wrap.max $0, $1, $2, $3; | u32 v32 c32 v32")
	add("vset.u32.u32.lt.max $0, $1, $2, $3; | u32 v32 v32 v32")
	add("vadd.s32.s32.s32.sat $0.h1, $1, $2, $3; | u32 v32 v32 v32")
	add("vshl.u32.u32.u32.sat.clamp $0.b1, $1, $2, $3; | u32 v32 c32 v32")
}

func approxForms(add adder) {
	for _, m := range []string{"", ".ftz"} {
		for _, op := range []string{"rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2"} {
			add("~%s.approx%s.f32 f32 f32", op, m)
		}
		add("~div.approx%s.f32 f32 f32 f32", m)
		add("~div.full%s.f32 f32 f32 f32", m)
	}
	add("~ex2.approx.ftz.f16 f16 f16")
	add("~ex2.approx.ftz.f16x2 f16x2 f16x2")
	add("~tanh.approx.f32 f32 f32")
	add("~rcp.approx.ftz.f64 f64 f64")
	add("~rsqrt.approx.f64 f64 f64")
	add("~rsqrt.approx.ftz.f64 f64 f64")
	for _, t := range []string{"f16", "f16x2"} {
		add("~ex2.approx.%s %s %s", t, t, t)
		add("~tanh.approx.%s %s %s", t, t, t)
	}
	for _, t := range []string{"bf16", "bf16x2"} {
		add("~ex2.approx.ftz.%s %s %s", t, t, t)
		add("~tanh.approx.%s %s %s", t, t, t)
	}
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
	l := map[string]*layout{"f16": half, "bf16": brain, "f32": single, "f64": double}[t]
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
