package weights

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// readVectors reads the file, as a program in another language does.
func readVectors(t testing.TB) (v vectors) {
	t.Helper()
	text, err := os.ReadFile(vectorFile)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &v))
	return v
}

// frameOf is what a reader has of a frame: its own bytes, its table or nil, its size.
func frameOf(t testing.TB, v frameVector) (own, text []byte, size uint64) {
	t.Helper()
	own, err := hex.DecodeString(v.User)
	require.NoError(t, err)
	if v.Table != nil {
		return own, []byte(*v.Table), v.Size
	}
	text, err = hex.DecodeString(v.TableHex)
	require.NoError(t, err)
	return own, text, v.Size
}

// reading is a reader of a vector's frames.
type reading struct {
	assembly
	tables tables
}

// take reads one frame.
func (r *reading) take(own, text []byte, size uint64) (b bucket, t *table, torn, belongs bool, err error) {
	if b, err = parseBucket(own, size); err != nil {
		return b, nil, r.tear(), false, err
	}
	if torn, belongs, err = r.place(&b); err != nil || !belongs {
		return b, nil, torn, belongs, err
	}
	t, err = r.tables.of(&b, func() ([]byte, error) { return text, nil })
	if err == nil {
		err = r.add(&b, t)
	}
	if err != nil {
		torn = r.tear() || torn
	}
	return b, t, torn, belongs, err
}

func TestVectorsOfGoodFrames(t *testing.T) {
	for _, v := range readVectors(t).Frames {
		t.Run(v.Name, func(t *testing.T) {
			own, text, size := frameOf(t, v)
			b, err := parseBucket(own, size)
			require.NoError(t, err)
			got := frameContent{First: b.first, Last: b.last, GivenUp: b.givenUp, Number: b.number, Step: b.step, Bucket: b.index, At: b.at, Tensors: []tensorVector{}}
			if b.tensors > 0 {
				require.Equal(t, sha256.Sum256(text), b.digest)
				table, err := parseTable(text)
				require.NoError(t, err)
				require.NoError(t, b.suits(table))
				for _, e := range table.entries {
					got.Tensors = append(got.Tensors, tensorVector{e.Name, e.DType, e.Shape, (*shardVector)(e.Of), e.at, e.size, e.from})
				}
			}
			require.Equal(t, *v.Frame, got)
		})
	}
}

func TestVectorsOfRefusedFrames(t *testing.T) {
	for _, v := range readVectors(t).Refused {
		t.Run(v.Name, func(t *testing.T) {
			_, _, torn, _, err := new(reading).take(frameOf(t, v))
			require.ErrorIs(t, err, ErrFormat)
			require.False(t, torn)
			t.Log(v.Reason, "|", err)
		})
	}
}

func TestVectorsOfSequences(t *testing.T) {
	all := readVectors(t)
	for _, v := range append(all.Sequences, all.Described...) {
		t.Run(v.Name, func(t *testing.T) {
			var r reading
			said := ok(parseMetadata([]byte(v.Data)))(t)
			r.describe(&said)
			require.Equal(t, v.Outcome, outcomes(t, &r, v.Frames))
		})
	}
}

// outcomes is what a reader makes of frames up to the end of the channel.
func outcomes(t *testing.T, r *reading, frames []frameVector) []outcome {
	all := []outcome{}
	var tensors []outcomeTensor
	torn := func() { all = append(all, outcome{Event: "torn", Number: r.number, Step: new(r.step)}) }
	for i, v := range frames {
		number, step := r.number, r.step
		b, table, tears, belongs, err := r.take(frameOf(t, v))
		if tears {
			all = append(all, outcome{Event: "torn", Number: number, Step: new(step)})
		}
		switch {
		case err != nil:
			return append(all, outcome{Event: "refused", Frame: new(i)})
		case !belongs:
			all = append(all, outcome{Event: "skipped", Frame: new(i)})
			continue
		case b.givenUp:
			torn()
			continue
		case b.first:
			tensors = nil
		}
		if table != nil {
			for _, e := range table.entries {
				if e.from == 0 {
					tensors = append(tensors, outcomeTensor{Name: e.Name})
				}
				x := &tensors[len(tensors)-1]
				x.Pieces = append(x.Pieces, [3]uint64{uint64(i), e.at, e.size})
			}
		}
		if b.last {
			all = append(all, outcome{Event: "whole", Number: b.number, Step: new(b.step), Tensors: tensors})
		}
	}
	if r.tear() {
		torn()
	}
	return all
}

func TestVectorsOfMetadata(t *testing.T) {
	v := readVectors(t)
	for _, m := range v.Metadata {
		got, err := parseMetadata([]byte(m.Text))
		require.NoError(t, err, m.Name)
		require.Equal(t, m.InPlace, got.InPlace, m.Name)
		require.Equal(t, m.Tensors == nil, got.Tensors == nil, m.Name)
		if m.Tensors == nil {
			continue
		}
		tensors := []metadataTensor{}
		for _, x := range got.Tensors {
			tensors = append(tensors, metadataTensor{x.Name, x.DType, x.Shape, (*shardVector)(x.Of)})
		}
		require.Equal(t, *m.Tensors, tensors, m.Name)
	}
	for _, m := range v.RefusedMetadata {
		_, err := parseMetadata([]byte(m.Text))
		require.ErrorIs(t, err, ErrFormat, m.Name)
	}
}

// An update has 2^20 tensors at most, and more are refused in whichever bucket they come.
func TestTooManyTensors(t *testing.T) {
	most := &table{entries: make([]entry, maxTensors), end: 1}
	for i := range most.entries {
		most.entries[i] = entry{Meta: Meta{Name: strconv.Itoa(i)}, total: 1, size: 1}
	}
	another := &table{entries: []entry{{Meta: Meta{Name: "another"}, total: 1, size: 1}}, end: 1}
	var a assembly
	require.NoError(t, a.add(&bucket{first: true, number: 1, tensors: maxTensors, at: 8}, most))
	require.ErrorIs(t, a.add(&bucket{number: 1, index: 1, tensors: 1, at: 8}, another), ErrFormat)
	own := ok(hex.DecodeString(draft{flags: first, number: 1, tensors: new(uint32(maxTensors + 1)), table: "{}"}.vector("", "").User))(t)
	require.ErrorContains(t, errOf(parseBucket(own, 8)), "1048577 tensors")
}

// The tables that a reader knows are bounded, and the newest is among them.
func TestKnownTablesAreBounded(t *testing.T) {
	var k tables
	const fit = maxKnown / maxTable
	for i := range 3 * fit {
		digest := [sha256.Size]byte{byte(i)}
		k.keep(digest, &table{}, maxTable)
		require.Len(t, k.known, i%fit+1)
		_, err := k.of(&bucket{tensors: 1, digest: digest}, func() ([]byte, error) { return nil, errors.New("it is read again") })
		require.NoError(t, err)
	}
}
