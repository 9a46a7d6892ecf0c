package weights

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// vectorFile has frames of weights, for programs in any language to be tested with.
const vectorFile = "../channel/testdata/weights.json"

var update = flag.Bool("update", false, "rewrite "+vectorFile)

// vectors are the content of vectorFile.
type vectors struct {
	Comment         []string         `json:"comment"`
	Frames          []frameVector    `json:"frames"`
	Refused         []frameVector    `json:"refused"`
	Sequences       []sequenceVector `json:"sequences"`
	Described       []sequenceVector `json:"described_sequences"`
	Metadata        []metadataVector `json:"metadata"`
	RefusedMetadata []metadataVector `json:"refused_metadata"`
}

// A frameVector is one frame: its own bytes, its size, and its table where the reader may need one.
type frameVector struct {
	Name     string        `json:"name,omitempty"`
	Comment  string        `json:"comment,omitempty"`
	User     string        `json:"user"`
	Size     uint64        `json:"size"`
	Table    *string       `json:"table,omitempty"`
	TableHex string        `json:"table_hex,omitempty"`
	Frame    *frameContent `json:"frame,omitempty"`
	Reason   string        `json:"reason,omitempty"`
}

// A frameContent is what a frame says.
type frameContent struct {
	First   bool           `json:"first"`
	Last    bool           `json:"last"`
	GivenUp bool           `json:"given_up"`
	Number  uint64         `json:"number"`
	Step    int64          `json:"step"`
	Bucket  uint32         `json:"bucket"`
	At      uint64         `json:"at"`
	Tensors []tensorVector `json:"tensors"`
}

type tensorVector struct {
	Name  string       `json:"name"`
	DType string       `json:"dtype"`
	Shape []uint64     `json:"shape"`
	Of    *shardVector `json:"of,omitempty"`
	At    uint64       `json:"at"`
	Bytes uint64       `json:"bytes"`
	From  uint64       `json:"from,omitempty"`
}

type shardVector struct {
	Shape []uint64 `json:"shape"`
	Begin []uint64 `json:"begin"`
}

// A sequenceVector is the frames of a channel, one after the other, up to its end.
type sequenceVector struct {
	Name    string        `json:"name"`
	Comment string        `json:"comment"`
	Data    string        `json:"data,omitempty"` // of the offer
	Frames  []frameVector `json:"frames"`
	Outcome []outcome     `json:"outcome"`
}

// An outcome is one thing that a reader makes of a sequence.
type outcome struct {
	Event   string          `json:"event"`            // whole, torn, skipped, refused
	Frame   *int            `json:"frame,omitempty"`  // skipped, refused: which
	Number  uint64          `json:"number,omitempty"` // whole, torn
	Step    *int64          `json:"step,omitempty"`   // whole, torn
	Tensors []outcomeTensor `json:"tensors,omitempty"`
}

type outcomeTensor struct {
	Name   string      `json:"name"`
	Pieces [][3]uint64 `json:"pieces"` // frame, at, bytes
}

type metadataVector struct {
	Name    string            `json:"name"`
	Text    string            `json:"text"`
	Tensors *[]metadataTensor `json:"tensors,omitempty"` // absent: the publisher does not know them
	InPlace bool              `json:"in_place,omitempty"`
	Reason  string            `json:"reason,omitempty"`
}

type metadataTensor struct {
	Name  string       `json:"name"`
	DType string       `json:"dtype"`
	Shape []uint64     `json:"shape"`
	Of    *shardVector `json:"of,omitempty"`
}

// made are the vectors as this file makes them.
func made() vectors {
	return vectors{
		Comment: []string{
			"Frames of weights: docs/wire.md, 'Weights'. user is the application's own bytes of the frame, in hex; size is how many bytes the frame has.",
			"table is the text that lies in the slot; table_hex is its bytes in hex where they are no UTF-8. A frame without both has no table, or, in a sequence, one whose digest the reader knows.",
			"frames are good, and say frame. Each of refused is refused by itself, for the reason. Entries of tables appear with the numbers that they have; from is left out where it is 0.",
			"sequences are channels from the reader's first frame to the end of the channel, behind the last frame. Frames count from 0.",
			"outcome is in order: whole and torn updates, frames that are skipped, and the frame that is refused, behind which the reader takes nothing. pieces are frame, at and bytes.",
			"described_sequences are channels of offers that have data.",
			"metadata is data of offers, and refused_metadata is such data that is refused.",
		},
		Frames: goodFrames(), Refused: refusedFrames(), Sequences: sequences(), Described: describedSequences(), Metadata: goodMetadata(), RefusedMetadata: refusedMetadata(),
	}
}

// TestVectorsAreWritten: the file is what this package makes.
func TestVectorsAreWritten(t *testing.T) {
	want, err := json.MarshalIndent(made(), "", " ")
	require.NoError(t, err)
	want = append(want, '\n')
	if *update {
		require.NoError(t, os.WriteFile(vectorFile, want, 0o644))
	}
	got, err := os.ReadFile(vectorFile)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got))
}

// A draft is a frame in the making. Its own bytes follow from the fields that are set.
type draft struct {
	flags   uint32
	number  uint64
	step    int64
	bucket  uint32
	tensors *uint32 // instead of how many the table has
	at      uint64
	bytes   *uint64 // instead of the table's
	table   string
	digest  *[32]byte // instead of the table's
	size    uint64    // of the frame; 0: it ends with the table
	user    func([]byte) []byte
	known   bool // the reader knows the table, which is not written
}

// vector writes the frame.
func (d draft) vector(name, comment string) frameVector {
	b := make([]byte, 80)
	copy(b, "GFWU")
	le := littleEndian
	le.PutUint32(b[4:], d.flags)
	le.PutUint64(b[8:], d.number)
	le.PutUint64(b[16:], uint64(d.step))
	le.PutUint32(b[24:], d.bucket)
	le.PutUint32(b[28:], valueOr(d.tensors, entries(d.table)))
	le.PutUint64(b[32:], d.at)
	le.PutUint64(b[40:], valueOr(d.bytes, uint64(len(d.table))))
	if d.table != "" || d.digest != nil {
		digest := valueOr(d.digest, sha256.Sum256([]byte(d.table)))
		copy(b[48:], digest[:])
	}
	if d.user != nil {
		b = d.user(b)
	}
	v := frameVector{Name: name, Comment: comment, User: hex.EncodeToString(b), Size: d.size}
	if v.Size == 0 {
		v.Size = d.at + uint64(len(d.table))
	}
	switch {
	case d.table == "" || d.known:
	case utf8.ValidString(d.table):
		v.Table = &d.table
	default:
		v.TableHex = hex.EncodeToString([]byte(d.table))
	}
	return v
}

func valueOr[T any](p *T, other T) T {
	if p != nil {
		return *p
	}
	return other
}

// entries counts those of a table that is JSON; 1 of any other.
func entries(table string) uint32 {
	var t struct{ Tensors []json.RawMessage }
	if table == "" {
		return 0
	}
	if json.Unmarshal([]byte(table), &t) != nil {
		return 1
	}
	return uint32(len(t.Tensors))
}

// tableOf is the table of these tensors, as a plain writer writes it.
func tableOf(tensors ...tensorVector) string {
	text, err := json.Marshal(map[string]any{"tensors": tensors})
	if err != nil {
		panic(err)
	}
	return string(text)
}
