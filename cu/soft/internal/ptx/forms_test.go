package ptx

import (
	_ "embed"
	"encoding/binary"
	"strings"
)

// formCases is how many operands each form is tried with.
const formCases = 48

// recordedForms are instructions with the types of their operands, the result's first,
// and their results on an H200.
//
//go:embed testdata/h200.txt
var recordedForms string

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
