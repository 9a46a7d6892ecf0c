package channel

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/vmm"
)

// vectorFile has cursors as bytes, for programs in any language to be tested with.
const vectorFile = "testdata/cursors.json"

var update = flag.Bool("update", false, "rewrite "+vectorFile)

// A cursorVector is the cursors of one reader in one state.
type cursorVector struct {
	Name    string            `json:"name"`
	Comment string            `json:"comment"`
	Size    int               `json:"size"`
	Words   map[string]string `json:"words"` // eight bytes at an offset, both hexadecimal; all others are 0
}

// vectorOf is what is not zero.
func vectorOf(name, comment string, b []byte) cursorVector {
	v := cursorVector{name, comment, len(b), map[string]string{}}
	for off := 0; off < len(b); off += 8 {
		if eight := b[off : off+8]; string(eight) != "\x00\x00\x00\x00\x00\x00\x00\x00" {
			v.Words[hex.EncodeToString([]byte{byte(off >> 8), byte(off)})] = hex.EncodeToString(eight)
		}
	}
	return v
}

// vectorMember is a reader whose cursors the writer has just made.
func vectorMember(t *testing.T, slots int, flags uint64, q queue) (*member, shape) {
	s := ok(newShape(slots, 1000, flags))(t)
	s.generation = 7
	m := &member{cursor: &cursor{words: words{make([]byte, s.cursorSize())}}, at: s, queue: q}
	s.write(m.words)
	return m, s
}

// cursorVectors are made by the package itself.
func cursorVectors(t *testing.T) (all []cursorVector) {
	m, s := vectorMember(t, 3, 0, newQueue(DropOldest, 3))
	add := func(name, comment string) { all = append(all, vectorOf(name, comment, m.b)) }
	add("fresh", "What a reader is sent: 3 slots of 1,000 bytes, 1,024 apart, generation 7.")
	m.store(offPolicy, uint64(DropOldest))
	m.store(offJoin, uint64(Next))
	m.store(offReaderState, readerJoined)
	m.store(offStart, 5)
	add("joined", "The reader drops the oldest, joined at the next frame, and was admitted: that is sequence 5.")
	m.publish(1, 5, &Meta{Time: 1_000_000, Size: 1000})
	m.publish(2, 6, &Meta{Time: 2_000_000, Size: 10, User: []byte("nine more")})
	add("two frames", "Sequences 5 and 6 are numbers 1 and 2, in slots 1 and 2; the second has 10 bytes and 9 of the application's own.")
	m.store(offReleased, 1)
	m.store(s.entry(2)+entryStamp, 5)
	add("passed by", "Number 1 is released; the writer has taken the slot of number 2 again, whose stamp is odd.")
	m.store(offLast, 6)
	m.store(offWriterState, writerEnded)
	add("ended", "The writer has ended in order, with sequence 6.")
	all = append(all, latestVectors(t)...)
	return append(all, weightVectors(t)...)
}

// latestVectors are those of a reader of the newest frame.
func latestVectors(t *testing.T) (all []cursorVector) {
	m, s := vectorMember(t, 3, 0, newQueue(Latest, 3))
	add := func(name, comment string) { all = append(all, vectorOf(name, comment, m.b)) }
	m.store(offPolicy, uint64(Latest))
	m.store(offJoin, uint64(Newest))
	m.store(offReaderState, readerJoined)
	m.publish(1, 5, &Meta{Time: 1_000_000, Size: 1000})
	m.store(offStart, 5)
	m.publish(2, 6, &Meta{Time: 2_000_000, Size: 10, User: []byte("nine more")})
	add("latest", "A reader of latest, which began with the newest frame: sequences 5 and 6 are numbers 1 and 2, in slots 1 and 2, and have the entries of those.")
	m.store(offClaim, 3)
	m.publish(0, 7, &Meta{Time: 3_000_000, Size: 1000})
	m.store(s.entryAt(1)+entryStamp, 3)
	add("claimed", "The reader claims slot 2 and holds number 2. The newest frame is number 3, in slot 0, and the writer has taken slot 1, whose stamp is odd.")
	m.publish(1, 8, &Meta{Time: 4_000_000, Size: 1000})
	m.store(offNewest, 0)
	m.store(offPublished, 3)
	add("latest of a dead writer", "The writer has died before it stored newest and published for number 4: that is whole, in slot 1.")
	return all
}

// weightVectors are those of channels of one slot, and of slots that come back in any order.
func weightVectors(t *testing.T) (all []cursorVector) {
	m, _ := vectorMember(t, 1, 0, newQueue(Block, 1))
	add := func(name, comment string) { all = append(all, vectorOf(name, comment, m.b)) }
	joinsAt := func(sequence uint64) {
		m.store(offPolicy, uint64(Block))
		m.store(offJoin, uint64(Next))
		m.store(offReaderState, readerJoined)
		m.store(offStart, sequence)
	}
	joinsAt(5)
	m.publish(0, 5, &Meta{Time: 1_000_000, Size: 1000})
	m.store(offReleased, 1)
	m.publish(0, 6, &Meta{Time: 2_000_000, Size: 1000})
	m.store(offNoted, 41)
	m.store(offWanted, 3)
	add("one slot", "The reader keeps number 2 in the only slot, has noted 41, and the writer waits for it: number 3 is wanted.")

	m, s := vectorMember(t, 3, flagAnyOrder, newAnyOrder(3))
	add("any order", "What a reader is sent by a channel whose slots come back in any order.")
	joinsAt(5)
	for i := range uint64(3) {
		m.publish(i, 5+i, &Meta{Time: 1_000_000, Size: 1000})
	}
	m.store(returnedAt(1), 2)
	m.store(returnedAt(2), 3)
	m.publish(1, 8, &Meta{Time: 2_000_000, Size: 1000})
	add("given back in any order", "Sequences 5 to 7 are numbers 1 to 3, in slots 0 to 2. The reader keeps number 1, and has given back 2 and 3. Sequence 8 is number 4, in slot 1; it has the entry that number 1 had.")
	describe(m.words.store, s.entry(5), 2, 9, &Meta{Time: 3_000_000, Size: 10, User: []byte("nine more")})
	m.store(offWriterPolls, 1)
	add("any order, by a stream", "The host has described sequence 9, number 5 in slot 2, but for the stamp, which is still that of number 2. A stream will store that and published.")
	m.store(s.entry(5)+entryStamp, 10)
	m.store(offPublished, 5)
	m.store(offReaderPolls, 1)
	m.store(offWanted, 6)
	add("any order, waited for", "The stream has published number 5. The reader keeps 1, 4 and 5, and the writer waits for it: number 6 is wanted.")
	return all
}

// The vectors are what this package writes, and a reader takes their head.
func TestVectors(t *testing.T) {
	all := cursorVectors(t)
	if *update {
		text := ok(json.MarshalIndent(map[string]any{"vectors": all}, "", " "))(t)
		require.NoError(t, os.WriteFile(vectorFile, append(text, '\n'), 0o644))
	}
	text := ok(os.ReadFile(vectorFile))(t)
	var file struct{ Vectors []cursorVector }
	require.NoError(t, json.Unmarshal(text, &file))
	require.Equal(t, all, file.Vectors)
	for _, v := range all {
		b := make([]byte, v.Size)
		for at, word := range v.Words {
			off := ok(hex.DecodeString(at))(t)
			eight := ok(hex.DecodeString(word))(t)
			copy(b[int(off[0])<<8|int(off[1]):], eight)
		}
		s, err := readShape(words{b}, vmm.Descriptor{Size: 3072, Generation: 7})
		require.NoError(t, err, v.Name)
		require.Equal(t, shape{slots: s.slots, slotSize: 1000, stride: 1024, anyOrder: strings.Contains(v.Name, "any order"), generation: 7}, s)
		require.Equal(t, v.Name == "one slot", s.slots == 1)
	}
}
