package weights

import (
	"encoding/hex"
	"errors"
	"reflect"
	"testing"
)

// FuzzTable: no text makes the decoder of tables or metadata panic. What it takes lies where it says, and says the same when it is
// written plainly and read again.
func FuzzTable(f *testing.F) {
	v := readVectors(f)
	for _, x := range append(v.Frames, v.Refused...) {
		if _, text, _ := frameOf(f, x); len(text) < 512 {
			f.Add(text)
		}
	}
	for _, x := range append(v.Metadata, v.RefusedMetadata...) {
		f.Add([]byte(x.Text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := parseMetadata(text); err != nil && !errors.Is(err, ErrFormat) {
			t.Fatal(err)
		}
		table, err := parseTable(text)
		if err != nil {
			if table != nil || !errors.Is(err, ErrFormat) {
				t.Fatal(table, err)
			}
			return
		}
		tensors := []tensorVector{}
		for _, e := range table.entries {
			if e.at%256 != 0 || e.at+e.size > table.end || e.from+e.size > e.total || e.size == 0 && e.total > 0 {
				t.Fatalf("%+v", e)
			}
			tensors = append(tensors, tensorVector{e.Name, e.DType, e.Shape, (*shardVector)(e.Of), e.at, e.size, e.from})
		}
		again, err := parseTable([]byte(tableOf(tensors...)))
		if err != nil || !reflect.DeepEqual(table, again) {
			t.Fatalf("%+v\nis now %+v, %v", table, again, err)
		}
	})
}

// FuzzBucket: no own bytes make the decoder of frames panic, and what it takes lies within the frame.
func FuzzBucket(f *testing.F) {
	v := readVectors(f)
	for _, x := range append(v.Frames, v.Refused...) {
		own, _, size := frameOf(f, x)
		f.Add(own, size)
	}
	f.Fuzz(func(t *testing.T, own []byte, size uint64) {
		b, err := parseBucket(own, size)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		if b.tensors > 0 && (b.at+b.size < b.at || b.at+b.size > size || b.size > maxTable) {
			t.Fatalf("%+v in a frame of %d", b, size)
		}
	})
}

// FuzzUpdates: an update that is reported whole has all buckets from the first to the last, in order, and all bytes of each of
// its tensors once.
func FuzzUpdates(f *testing.F) {
	tables := []*table{nil}
	for _, tensors := range [][]tensorVector{{aWeight}, {aBias, scale}, {piece(0, 0, 1024)}, {piece(0, 1024, 1024)}, {piece(0, 2048, 2048)}, {piece(0, 1024, 3072), aWeight}, {aBias, piece(256, 0, 2048)}} {
		x, err := parseTable([]byte(tableOf(tensors...)))
		if err != nil {
			f.Fatal(err)
		}
		tables = append(tables, x)
	}
	for _, text := range []string{"010003", "110001" + "020102", "110003" + "000104" + "020105", "110007" + "020105", "110001" + "120001", "110001" + "040100"} {
		ops, _ := hex.DecodeString(text)
		f.Add(ops)
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		var a assembly
		var buckets []uint32
		var have map[string]uint64
		for ; len(ops) >= 3; ops = ops[3:] {
			b := bucket{first: ops[0]&1 != 0, last: ops[0]&2 != 0, givenUp: ops[0]&4 != 0, number: uint64(ops[0] >> 4), index: uint32(ops[1]), at: 1 << 20}
			x := tables[int(ops[2])%len(tables)]
			if x != nil {
				b.tensors, b.size = uint32(len(x.entries)), 8
			}
			if b.check(1<<30) != nil {
				continue
			}
			was := a.under
			torn, belongs, err := a.place(&b)
			if torn && !was || torn && a.under || err != nil && belongs {
				t.Fatalf("%+v: torn %t, belongs %t, %v, and an update was under way: %t", b, torn, belongs, err, was)
			}
			if !belongs {
				continue
			}
			if b.first {
				buckets, have = nil, map[string]uint64{}
			}
			if err := a.add(&b, x); err != nil {
				a.tear()
				continue
			}
			buckets = append(buckets, b.index)
			if x != nil {
				for _, e := range x.entries {
					if have[e.Name] != e.from {
						t.Fatalf("%s from %d on behind %d", e.Name, e.from, have[e.Name])
					}
					have[e.Name] += e.size
				}
			}
			if b.last {
				requireWhole(t, tables, buckets, have)
			}
		}
	})
}

func requireWhole(t *testing.T, tables []*table, buckets []uint32, have map[string]uint64) {
	for i, n := range buckets {
		if n != uint32(i) {
			t.Fatal(buckets)
		}
	}
	for _, x := range tables[1:] {
		for _, e := range x.entries {
			if n, there := have[e.Name]; there && n != e.total {
				t.Fatalf("%s has %d of %d bytes", e.Name, n, e.total)
			}
		}
	}
}
