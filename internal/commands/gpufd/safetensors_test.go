package gpufd

import (
	"encoding/binary"
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A tensor of a file.
type tensor struct {
	DType   string    `json:"dtype"`
	Shape   []uint64  `json:"shape"`
	Offsets [2]uint64 `json:"data_offsets"`
}

// safetensorsFile is a file of float tensors, by name, in that order.
func safetensorsFile(t *testing.T, tensors map[string][]byte) []byte {
	t.Helper()
	head, body := map[string]tensor{}, []byte(nil)
	for _, name := range sortedNames(tensors) {
		from := uint64(len(body))
		body = append(body, tensors[name]...)
		head[name] = tensor{DType: "F32", Shape: []uint64{uint64(len(tensors[name])) / 4}, Offsets: [2]uint64{from, uint64(len(body))}}
	}
	text := ok(json.Marshal(head))(t)
	return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text, body)
}

func sortedNames(m map[string][]byte) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// readTensors reads such a file.
func readTensors(t *testing.T, file []byte) map[string][]byte {
	t.Helper()
	n := binary.LittleEndian.Uint64(file)
	var head map[string]tensor
	require.NoError(t, json.Unmarshal(file[8:8+n], &head))
	all := map[string][]byte{}
	for name, x := range head {
		require.Equal(t, "F32", x.DType)
		require.Equal(t, []uint64{(x.Offsets[1] - x.Offsets[0]) / 4}, x.Shape)
		all[name] = file[8+n+x.Offsets[0] : 8+n+x.Offsets[1]]
	}
	return all
}

// Tensors come back as they were, from a file, several, and a directory with its index.
func TestSafetensors(t *testing.T) {
	t.Parallel()
	u := newKept(t)
	one := map[string][]byte{"embed": data(4000, 1), "head": data(8, 2)}
	two := map[string][]byte{"layer.0": data(400, 3)}
	both := map[string][]byte{"embed": one["embed"], "head": one["head"], "layer.0": two["layer.0"]}
	u.write("m/a.safetensors", safetensorsFile(t, one))
	u.write("m/b.safetensors", safetensorsFile(t, two))
	u.write("m/model.safetensors.index.json", []byte(`{"weight_map":{"embed":"a.safetensors","head":"a.safetensors","layer.0":"b.safetensors"}}`))
	for name, c := range map[string]struct {
		files []string
		want  map[string][]byte
	}{
		"file":      {[]string{"m/a.safetensors"}, one},
		"files":     {[]string{"m/a.safetensors", "m/b.safetensors"}, both},
		"directory": {[]string{"m"}, both},
		"index":     {[]string{"m/model.safetensors.index.json"}, both},
	} {
		u.does(append([]string{"put", name}, c.files...)...)
		u.does("get", name, "--verify", "-o", name+".safetensors")
		require.Equal(t, c.want, readTensors(t, u.read(name+".safetensors")), name)
	}
	require.Regexp(t, "^gpufd-l1:[0-9a-f]{32}$", u.layout("files"))
	require.Equal(t, u.layout("files"), u.layout("directory"), "the same tensors at the same places")
	require.NotEqual(t, u.layout("files"), u.layout("file"))
	u.write("m.bin", data(100, 4))
	u.does("put", "bytes", "m.bin")
	require.Nil(t, u.layout("bytes"))
	u.does("put", "parts", "--part", "0@0=m/a.safetensors", "--part", "1@0=m/b.safetensors")
	u.does("get", "parts", "--all", "-o", "out")
	require.Equal(t, two, readTensors(t, u.read("out/part-1.safetensors")))
	u.write("out.safetensors", safetensorsFile(t, two)[:20])
	u.fails(1, "out.safetensors", "put", "w", "out.safetensors")
	u.fails(1, "is there twice", "put", "w", "m/b.safetensors", "m/b.safetensors")
}

// layout returns what stat says of the first part's layout, or nil.
func (u *user) layout(name string) any {
	u.t.Helper()
	return u.stat(name)["parts"].([]any)[0].(map[string]any)["layout"]
}
