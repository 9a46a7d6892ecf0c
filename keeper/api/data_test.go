package api

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A table is told as it was written, and takes no more room than that.
func TestTableIsToldAsItIs(t *testing.T) {
	table := `{"a":"` + strings.Repeat("<&>", 1000) + `"}`
	d := Data{Name: "x", Version: 1, Table: json.RawMessage(table)}
	text, err := d.Encode()
	require.NoError(t, err)
	require.Contains(t, string(text), table)
	require.Less(t, len(text), len(table)+200)
	var back Data
	require.NoError(t, json.Unmarshal(text, &back))
	require.Equal(t, d, back)
}
