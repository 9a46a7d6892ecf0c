package safetensors

import (
	"encoding/json"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// Layouts are those of the vectors, which Python's tests read too, in whatever order the tensors come.
func TestLayouts(t *testing.T) {
	text, err := os.ReadFile("../../keeper/testdata/layouts.json")
	require.NoError(t, err)
	var vectors struct {
		Layouts []struct {
			Name, Layout string
			Table        struct {
				Tensors Table `json:"safetensors"`
				Views   []Tensor
			}
		}
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors.Layouts)
	for _, v := range vectors.Layouts {
		require.NoError(t, v.Table.Tensors.Check(), v.Name)
		all := append(v.Table.Tensors.Tensors, v.Table.Views...)
		require.Equal(t, v.Layout, LayoutOf(all), v.Name)
		slices.Reverse(all)
		require.Equal(t, v.Layout, LayoutOf(all), v.Name)
	}
}
