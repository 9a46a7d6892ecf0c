package ptx

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// formCases is how many operands each form is tried with.
const formCases = 48

// forms are instructions with the types of their operands, the result's first.
// Their results on an H200 are in testdata/h200.txt.
func forms() (list []string) {
	add := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	for _, t := range []string{"u16", "s16", "u32", "s32", "u64", "s64"} {
		wide := map[string]string{"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}[t]
		for _, op := range []string{"add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"} {
			add("%s.%s %s %s %s", op, t, t, t, t)
		}
		add("mad.lo.%s %s %s %s %s", t, t, t, t, t)
		add("mad.hi.%s %s %s %s %s", t, t, t, t, t)
		if wide != "" {
			add("mul.wide.%s %s %s %s", t, wide, t, t)
			add("mad.wide.%s %s %s %s %s", t, wide, t, t, wide)
		}
		add("shr.%s %s %s u32", t, t, t)
		for _, c := range []string{"eq", "ne", "lt", "le", "gt", "ge"} {
			add("setp.%s.%s pred %s %s", c, t, t, t)
		}
		if t[0] == 's' {
			add("neg.%s %s %s", t, t, t)
			add("abs.%s %s %s", t, t, t)
		}
		add("selp.%s %s %s %s pred", t, t, t, t)
		for _, f := range []string{"f32", "f64"} {
			add("cvt.rn.%s.%s %s %s", f, t, f, t)
			for _, r := range []string{"rni", "rzi", "rmi", "rpi"} {
				add("cvt.%s.%s.%s %s %s", r, t, f, t, f)
			}
		}
		for _, u := range []string{"u16", "s16", "u32", "s32", "u64", "s64"} {
			if u != t {
				add("cvt.%s.%s %s %s", t, u, t, u)
				add("cvt.sat.%s.%s %s %s", t, u, t, u)
			}
		}
		for _, u := range []string{"u8", "s8"} {
			add("cvt.%s.%s %s s16", t, u, t)
			add("cvt.sat.%s.%s s16 %s", u, t, t)
			add("cvt.%s.%s s16 %s", u, t, t)
		}
	}
	add("add.sat.s32 s32 s32 s32")
	add("sub.sat.s32 s32 s32 s32")
	add("set.lt.u32.s32 u32 s32 s32")
	add("set.gtu.f32.f32 f32 f32 f32")
	for _, t := range []string{"b16", "b32", "b64"} {
		for _, op := range []string{"and", "or", "xor"} {
			add("%s.%s %s %s %s", op, t, t, t, t)
		}
		add("not.%s %s %s", t, t, t)
		add("cnot.%s %s %s", t, t, t)
		add("shl.%s %s %s u32", t, t, t)
		if t != "b16" {
			add("popc.%s u32 %s", t, t)
			add("clz.%s u32 %s", t, t)
			add("brev.%s %s %s", t, t, t)
		}
	}
	for _, t := range []string{"f32", "f64"} {
		for _, op := range []string{"add.rn", "add", "sub.rn", "mul.rn", "div.rn", "min", "max"} {
			add("%s.%s %s %s %s", op, t, t, t, t)
		}
		add("fma.rn.%s %s %s %s %s", t, t, t, t, t)
		for _, op := range []string{"neg", "abs", "sqrt.rn", "rcp.rn"} {
			add("%s.%s %s %s", op, t, t, t)
		}
		for _, c := range strings.Fields("eq ne lt le gt ge equ neu ltu leu gtu geu num nan") {
			add("setp.%s.%s pred %s %s", c, t, t, t)
		}
		for _, r := range []string{"rni", "rzi", "rmi", "rpi"} {
			add("cvt.%s.%s.%s %s %s", r, t, t, t, t)
		}
	}
	for _, op := range []string{"add.rn", "sub.rn", "mul.rn", "div.rn", "min", "max"} {
		add("%s.ftz.f32 f32 f32 f32", op)
	}
	add("add.sat.f32 f32 f32 f32")
	add("mul.rn.ftz.sat.f32 f32 f32 f32")
	add("fma.rn.ftz.f32 f32 f32 f32 f32")
	add("fma.rn.sat.f32 f32 f32 f32 f32")
	add("sqrt.rn.ftz.f32 f32 f32")
	add("setp.lt.ftz.f32 pred f32 f32")
	add("cvt.rn.f32.f64 f32 f64")
	add("cvt.f64.f32 f64 f32")
	add("cvt.sat.f32.f32 f32 f32")
	add("cvt.ftz.f32.f32 f32 f32")
	add("cvt.rzi.ftz.s32.f32 s32 f32")
	return list
}

const formHeader = ".version 7.4\n.target sm_75\n.address_size 64\n"

// formInput is the operands of every case: numbers that are special to their types,
// and others.
func formInput(form string) []byte {
	seed := uint64(len(form))
	for _, c := range []byte(form) {
		seed = seed*131 + uint64(c)
	}
	next := func() uint64 {
		seed += 0x9e3779b97f4a7c15
		x := (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9
		x = (x ^ (x >> 27)) * 0x94d049bb133111eb
		return x ^ (x >> 31)
	}
	special := map[byte][]uint64{
		'u': {0, 1, 2, 7, 31, 255, 32767, 32768, 65535, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1<<63 - 1, 1 << 63, 1<<64 - 1},
		'3': {0, 1 << 31, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f7fffff, 1, 0x807fffff, 0x00800000, 0x4b000001, 0x3effffff, 0x40200000, 0xc0600000, 0x4f000000, 0x5f000000, 0x3fc00000},
		'6': {0, 1 << 63, 0x3ff0000000000000, 0xbff0000000000000, 0x7ff0000000000000, 0xfff0000000000000, 0x7ff8000000000000, 0x7fefffffffffffff, 1, 0x8010000000000000, 0x4004000000000000, 0xc00c000000000000, 0x41e0000000000000, 0x43e0000000000000, 0x36a0000000000000, 0x47efffffefffffff},
	}
	var b []byte
	types := strings.Fields(form)[2:]
	for range formCases {
		for i := range 3 {
			kind := byte('u')
			if i < len(types) && types[i][0] == 'f' {
				kind = types[i][1]
			}
			v := next()
			switch s := special[kind]; next() % 4 {
			case 0, 1:
				v = s[v%uint64(len(s))]
			case 2: // floats of like sizes
				if kind == '3' {
					v = v&0x80ffffff | 0x3f000000
				} else if kind == '6' {
					v = v&0x800fffffffffffff | 0x3ff0000000000000
				}
			}
			b = binary.LittleEndian.AppendUint64(b, v)
		}
	}
	return b
}
