package ptx

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// aliased is a form that writes to its n-th operand, with one instruction, or none.
func (f hashForm) aliased(n int) (g hashForm, ok bool) {
	if f.types[n] != f.types[0] || strings.Count(f.text, ";") != 1 || strings.Contains(f.text, "{") || !strings.Contains(f.text, fmt.Sprint("$", n)) {
		return g, false
	}
	move := fmt.Sprintf(" mov.b%d", bitsOf(f.types[0]))
	if f.types[0] == "pred" {
		move = " mov.pred"
	}
	g = f
	g.text = strings.ReplaceAll(f.text, "$0", fmt.Sprint("$", n)) + move + fmt.Sprintf(" $0, $%d;", n)
	return g, true
}

// A register may be written by an instruction that reads it.
func TestTargetIsASource(t *testing.T) {
	const cases = 32
	run := func(f hashForm, input []byte) (string, bool) {
		m, err := Parse(hashHeader + f.kernel(0))
		if err != nil {
			return "", false
		}
		memory := append(slices.Clip(input[:8*hashWords*cases]), make([]byte, 8*cases)...)
		launch(t, m, "k0", memory, 1, cases, params(uint64(base), uint64(base+8*hashWords*cases)))
		return hashOf(memory[8*hashWords*cases:]), true
	}
	compared := 0
	for k, f := range hashForms() {
		if testing.Short() && k%4 > 0 {
			continue
		}
		input := f.input()
		want, ok := run(f, input)
		for n := 1; ok && n < len(f.types); n++ {
			if g, ok := f.aliased(n); ok {
				got, ok := run(g, input)
				require.True(t, ok, g.text)
				require.Equal(t, want, got, g.text)
				compared++
			}
		}
	}
	require.Greater(t, compared, 250)
}
