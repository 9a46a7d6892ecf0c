package safetensors

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

//go:embed testdata/tables.json
var tables []byte

// A table that cannot be true is refused at once. Python's reader takes and refuses the same:
// python/tests/test_tables.py.
func TestTablesOfStrangers(t *testing.T) {
	var vectors []struct {
		Name, Table, Number string
		Times               int
		Good                bool
	}
	require.NoError(t, json.Unmarshal(tables, &vectors))
	for _, v := range vectors {
		text := strings.ReplaceAll(v.Table, "SHAPE", strings.TrimSuffix(strings.Repeat(v.Number+",", v.Times), ","))
		begin := time.Now()
		got, err := parseTable([]byte(text))
		if v.Good {
			require.NoError(t, err, v.Name)
			require.Len(t, got.Tensors, strings.Count(text, `"name"`), v.Name)
		} else {
			require.ErrorIs(t, err, ErrFormat, v.Name)
			require.Less(t, len(err.Error()), 6000, v.Name)
		}
		require.Less(t, time.Since(begin), time.Minute, v.Name)
	}
}

func TestHalfPairs(t *testing.T) {
	for text, whole := range map[string]bool{
		``: true, `\`: true, `\u`: true, `\ud83`: true, `\ud83d\ude00`: true, `\\ud800`: true, `\\\\ud800`: true, `ä\n\u00e4`: true,
		`\ud800`: false, `\udc00`: false, `\uDFFF`: false, `\ud800\ud800\udc00`: false, `\ud800x\udc00`: false, `\ud83d\ude00\udc00`: false, `\\\ud800`: false,
	} {
		require.Equal(t, whole, CheckEscapes([]byte(text)) == nil, text)
	}
	_, err := parseHeader([]byte(`{"\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`), 1)
	require.ErrorIs(t, err, errHalfPair)
}

// parseTable reads a table in JSON and checks it, as [Table.Check] does.
func parseTable(b []byte) (Table, error) {
	var t Table
	if err := json.Unmarshal(b, &t); err != nil {
		return Table{}, fmt.Errorf("%w: the table: %w", ErrFormat, err)
	}
	return t, t.Check()
}
