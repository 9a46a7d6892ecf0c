package wire

import (
	"encoding/hex"
	"errors"
	"reflect"
	"runtime"
	"testing"

	"github.com/gpufd/gpufd/gpumem"
)

// FuzzDecode: no record makes Decode panic (FAULTS 28, 29). What it takes says the same when
// it is encoded and decoded again: only what this version does not know is lost.
//
//fault:rows 28 29
func FuzzDecode(f *testing.F) {
	for _, m := range messages() {
		if record := Encode(m); len(record) < 256 { // long ones take a minute each to be made shorter
			f.Add(record)
		}
	}
	for _, v := range readVectors(f).Foreign {
		if record, err := hex.DecodeString(v.Hex); err == nil && len(record) < 256 {
			f.Add(record)
		}
	}
	f.Add([]byte(nil))
	f.Add([]byte("GPFD\x01\x00\x02\x00"))
	f.Add(flaw(Mapped{Generation: 1}, 12, 0xff, 0xff, 0xff, 0x7f))
	f.Add(append(Encode(Attach{Driver: 1, Access: 1, Name: "x"})[:20], 0xff, 0xff, 'n'))
	f.Fuzz(func(t *testing.T, record []byte) {
		m, err := Decode(record)
		if err != nil {
			if m != nil || !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrVersion) && !errors.Is(err, ErrUnsupported) {
				t.Fatalf("%#v with %v", m, err)
			}
			return
		}
		if _, ok := m.(Unknown); ok {
			return // nobody sends one
		}
		again := Encode(m)
		if len(again) > len(record) {
			t.Fatalf("%#v\nwas   %x\nis now %x", m, record, again)
		}
		if same, err := Decode(again); err != nil || !reflect.DeepEqual(m, same) {
			t.Fatalf("%#v\nis now %#v, %v", m, same, err)
		}
	})
}

// A record that announces much is not given room for it.
//
//fault:rows 28
func TestDecodeAllocatesNoMoreThanTheRecord(t *testing.T) {
	for _, record := range [][]byte{
		append(Encode(Attach{Driver: 1, Access: 1, Name: "x"})[:20], 0xff, 0xff, 'n'),
		flaw(Mapped{Generation: 1}, 12, 0xff, 0xff, 0xff, 0x7f),
		flaw(Offer{Access: gpumem.ReadOnly, Name: "n"}, 16+64, 0xff, 0xff, 0xff, 0xff),
		mended(append(Encode(Mapped{}), 0, 0x7f, 0xff, 0xff)), // a field of 65,535 bytes
	} {
		const times = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			_, _ = Decode(record)
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / times; n > 16<<10 {
			t.Errorf("%d bytes for a record of %d", n, len(record))
		}
	}
}
