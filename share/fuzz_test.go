package share

import (
	"errors"
	"runtime"
	"testing"

	"github.com/gpufd/gpufd/sock"
)

// FuzzDecode: no record makes decode panic or allocate more than the record is
// long (FAULTS 28, 29), and what it accepts is exactly what encode writes.
func FuzzDecode(f *testing.F) {
	for _, m := range messages() {
		if record := encode(m); len(record) < 256 { // long ones take a minute each to be made shorter
			f.Add(record)
		}
	}
	f.Add([]byte(nil))
	f.Add([]byte("GPFD\x01\x00\x02\x00"))
	f.Add(flaw(mapped{1}, 12, 0xff, 0xff, 0xff, 0x7f))
	f.Add(append(encode(attach{1, 1, "x"})[:20], 0xff, 0xff, 'n'))
	f.Fuzz(func(t *testing.T, record []byte) {
		if len(record) > sock.MaxRecord {
			return // never comes that far
		}
		m, err := decode(record)
		if err != nil {
			if m != nil || !errors.Is(err, ErrWire) && !errors.Is(err, ErrVersion) {
				t.Fatalf("%#v with %v", m, err)
			}
			return
		}
		if again := encode(m); string(again) != string(record) {
			t.Fatalf("%#v\nwas   %x\nis now %x", m, record, again)
		}
	})
}

// A record that announces much is not given room for it.
func TestDecodeAllocatesNoMoreThanTheRecord(t *testing.T) {
	for _, record := range [][]byte{
		append(encode(attach{1, 1, "x"})[:20], 0xff, 0xff, 'n'),
		flaw(mapped{1}, 12, 0xff, 0xff, 0xff, 0x7f),
		flaw(offer{access: ReadOnly, name: "n"}, 16+64, 0xff, 0xff, 0xff, 0xff),
	} {
		const times = 100
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range times {
			_, _ = decode(record)
		}
		runtime.ReadMemStats(&after)
		if n := (after.TotalAlloc - before.TotalAlloc) / times; n > 1<<17 {
			t.Errorf("%d bytes for a record of %d", n, len(record))
		}
	}
}
