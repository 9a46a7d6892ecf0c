package safetensors

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// write makes a file of a directory.
func write(t *testing.T, dir, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	require.NoError(t, os.WriteFile(path, content, 0o600))
	return path
}

const (
	firstHead  = `{"__metadata__":{"format":"pt","part":"1"},"w":{"dtype":"BF16","shape":[2,128],"data_offsets":[0,512]},"b":{"dtype":"U8","shape":[3],"data_offsets":[512,515]}}`
	secondHead = `{"__metadata__":{"format":"pt","part":"2"},"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"none":{"dtype":"F16","shape":[0,4],"data_offsets":[8,8]}}`
	indexText  = `{"metadata":{"total_size":523},"weight_map":{"w":"m-1.safetensors","b":"m-1.safetensors","v":"m-2.safetensors","none":"m-2.safetensors"}}`
)

func bytesFrom(n, from int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(from + i)
	}
	return b
}

// shards is a directory with an index and two files.
func shards(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "m-1.safetensors", fileBytes(firstHead, bytesFrom(515, 1)))
	write(t, dir, "m-2.safetensors", fileBytes(secondHead, bytesFrom(8, 100)))
	write(t, dir, "m.safetensors.index.json", []byte(indexText))
	return dir
}

// A model of two files goes into one buffer, and from there into one file, which is
// the same model.
func TestModelThroughABuffer(t *testing.T) {
	dev := cutest.Device(t)
	ctx := cutest.Context(t, dev)
	m, err := Open(shards(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, m.Close()) }()
	require.Equal(t, Table{
		Tensors: []Tensor{
			{"w", "BF16", []uint64{2, 128}, 0, 512, nil}, {"b", "U8", []uint64{3}, 512, 3, nil},
			{"v", "F32", []uint64{2}, 768, 8, nil}, {"none", "F16", []uint64{0, 4}, 1024, 0, nil},
		},
		Metadata: map[string]string{"format": "pt"}, Size: 1024,
	}, m.Table)
	require.Len(t, m.Segments(), 2, "w and b follow each other")

	buf, err := vmm.New(dev, m.Table.Size)
	require.NoError(t, err)
	defer func() { require.NoError(t, buf.Close()) }()
	require.NoError(t, buf.Load(t.Context(), m.Segments(), vmm.TransferOptions{}))
	got := make([]byte, 1024)
	require.NoError(t, cu.CopyToHost(ctx, got, buf.Ptr()))
	require.Equal(t, bytesFrom(515, 1), got[:515])
	require.Equal(t, bytesFrom(8, 100), got[768:776])

	told, err := json.Marshal(m.Table)
	require.NoError(t, err)
	table, err := parseTable(told)
	require.NoError(t, err)
	require.Equal(t, m.Table, table)
	out, err := os.OpenFile(write(t, t.TempDir(), "out.safetensors", make([]byte, 5000)), os.O_RDWR, 0)
	require.NoError(t, err)
	defer out.Close()
	larger := table
	larger.Size = buf.Size() + 1
	require.ErrorIs(t, larger.Write(t.Context(), out, buf, vmm.TransferOptions{}), ErrFormat)
	require.ErrorIs(t, table.Write(t.Context(), out, nil, vmm.TransferOptions{}), cu.ErrClosed)
	info, err := out.Stat()
	require.NoError(t, err)
	require.EqualValues(t, 5000, info.Size(), "what is refused leaves the file")
	require.NoError(t, table.Write(t.Context(), out, buf, vmm.TransferOptions{}))
	content, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	require.Equal(t, "{\"__metadata__\":{\"format\":\"pt\"},\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"+
		"\"w\":{\"dtype\":\"BF16\",\"shape\":[2,128],\"data_offsets\":[8,520]},\"none\":{\"dtype\":\"F16\",\"shape\":[0,4],\"data_offsets\":[520,520]},"+
		"\"b\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[520,523]}}", string(trim(content[8:len(content)-523])))
	require.Equal(t, append(bytesFrom(8, 100), bytesFrom(515, 1)...), content[len(content)-523:])
	again, err := Open(out.Name())
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func trim(b []byte) []byte {
	for len(b) > 0 && b[len(b)-1] == ' ' {
		b = b[:len(b)-1]
	}
	return b
}

func TestOpen(t *testing.T) {
	dir := shards(t)
	for _, paths := range [][]string{
		{filepath.Join(dir, "m.safetensors.index.json")},
		{filepath.Join(dir, "m-1.safetensors"), filepath.Join(dir, "m-2.safetensors")},
	} {
		m, err := Open(paths...)
		require.NoError(t, err)
		require.EqualValues(t, 1024, m.Table.Size)
		require.NoError(t, m.Close())
		require.NoError(t, m.Close())
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "m.safetensors.index.json")))
	_, err := Open(dir)
	require.ErrorContains(t, err, "has no index, and m-1.safetensors, m-2.safetensors, which may be several models")
	for i, name := range []string{"m-1.safetensors", "m-2.safetensors"} {
		require.NoError(t, os.Rename(filepath.Join(dir, name), filepath.Join(dir, fmt.Sprintf("m-%d-of-2.safetensors", i+1))))
	}
	m, err := Open(dir)
	require.NoError(t, err)
	require.Len(t, m.Table.Tensors, 4)
	require.NoError(t, m.Close())
	m, err = Open(write(t, t.TempDir(), "none.safetensors", fileBytes("{}", nil)))
	require.NoError(t, err)
	require.Empty(t, m.Table.Tensors)
	require.NoError(t, m.Close())
	require.NoError(t, (*Model)(nil).Close())
	require.Empty(t, (*Model)(nil).Segments())
}

// Files that do not fit together are refused, by name, and nothing stays open.
func TestOpenRefuses(t *testing.T) {
	before := cutest.Descriptors()
	dir := shards(t)
	one := filepath.Join(dir, "m-1.safetensors")
	pipe := filepath.Join(t.TempDir(), "pipe.safetensors")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	two := t.TempDir()
	write(t, two, "a.safetensors.index.json", nil)
	write(t, two, "b.safetensors.index.json", nil)
	cut := write(t, t.TempDir(), "cut.safetensors", fileBytes(firstHead, make([]byte, 514)))
	for name, c := range map[string]struct {
		paths []string
		words string
	}{
		"not there":         {[]string{dir + "/none"}, "no such file"},
		"twice":             {[]string{one, one}, `tensor "w" is there twice`},
		"a pipe":            {[]string{pipe}, "not a regular file"},
		"an empty folder":   {[]string{t.TempDir()}, "there are no *.safetensors"},
		"two indexes":       {[]string{two}, "has 2 indexes"},
		"cut off":           {[]string{one, cut}, cut},
		"a file is missing": {[]string{write(t, t.TempDir(), "x.json", []byte(indexText))}, "no such file"},
		"a tensor is elsewhere": {[]string{write(t, dir, "wrong.json", []byte(`{"weight_map":{"w":"m-2.safetensors"}}`))},
			`has tensor "w" in m-2.safetensors, but it is not there`},
	} {
		m, err := Open(c.paths...)
		require.ErrorContains(t, err, c.words, name)
		require.Nil(t, m, name)
		require.Equal(t, before, cutest.Descriptors(), name)
	}
}

func TestTableRefuses(t *testing.T) {
	for text, words := range map[string]string{
		`[]`: "the table",
		`{"tensors":[{"name":"a","dtype":"U8","shape":[4],"offset":5,"bytes":4}],"size":8}`:                                                                                       "at 5, in a buffer of 8",
		`{"tensors":[{"name":"a","dtype":"U8","shape":[4],"offset":18446744073709551615,"bytes":4}],"size":8}`:                                                                    "in a buffer of 8",
		`{"tensors":[{"name":"a","dtype":"U8","shape":[4],"offset":0,"bytes":3}],"size":8}`:                                                                                       "has 3 bytes instead of 4",
		`{"tensors":[{"name":"__metadata__","dtype":"U8","shape":[4],"offset":0,"bytes":4}],"size":8}`:                                                                            "a tensor named",
		`{"tensors":[{"name":"a","dtype":"U8","shape":[4],"offset":0,"bytes":4},{"name":"a","dtype":"U8","shape":[4],"offset":4,"bytes":4}],"size":8}`:                            "twice",
		`{"tensors":[{"name":"a","dtype":"U8","shape":[4],"offset":4,"bytes":4},{"name":"b","dtype":"U8","shape":[5],"offset":0,"bytes":5}],"size":8}`:                            "overlap",
		`{"tensors":[{"name":"a","dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,9],"offset":0,"bytes":4}],"size":8}`:                                                                     "[1 1 1 1 1 1 1 1] and 2 more",
		`{"tensors":[{"name":"a","dtype":"F64","shape":[9223372036854775807,9223372036854775807],"offset":0,"bytes":0},{"name":"b","dtype":"U8","offset":0,"bytes":1}],"size":1}`: "does not have a number of bytes",
	} {
		_, err := parseTable([]byte(text))
		require.ErrorIs(t, err, ErrFormat, text)
		require.ErrorContains(t, err, words, text)
	}
}
