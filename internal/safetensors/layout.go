package safetensors

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"slices"
	"strconv"
)

// LayoutAlgorithm begins each layout.
const LayoutAlgorithm = "gpufd-l1"

// LayoutOf returns the layout of a part that holds these tensors: a digest of their names, types, shapes, strides and
// offsets, in any order. Two parts of one layout have the same tensors at the same places, so that what was computed
// from addresses in one, such as a graph, also fits the other. docs/keeper.md says how it is computed.
func LayoutOf(tensors []Tensor) string {
	sorted := slices.SortedFunc(slices.Values(tensors), func(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) })
	h := sha256.New()
	for _, x := range sorted {
		x.writeLayout(h)
	}
	return LayoutAlgorithm + ":" + hex.EncodeToString(h.Sum(nil)[:16])
}

// writeLayout writes the line of one tensor.
func (x Tensor) writeLayout(h hash.Hash) {
	var line []byte
	line = append(append(line, x.Name...), 0)
	line = append(append(line, x.DType...), 0)
	line = append(appendNumbers(line, x.Shape), 0)
	line = append(appendNumbers(line, x.Stride), 0)
	line = append(strconv.AppendUint(line, x.Offset, 10), '\n')
	h.Write(line) // never returns an error
}

// appendNumbers appends numbers with commas between them.
func appendNumbers(line []byte, numbers []uint64) []byte {
	for i, n := range numbers {
		if i > 0 {
			line = append(line, ',')
		}
		line = strconv.AppendUint(line, n, 10)
	}
	return line
}
