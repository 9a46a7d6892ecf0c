package kernels_test

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/kernels"
)

//go:embed *.cu *.ptx kernels.sum digest/*.cu digest/*.ptx
var files embed.FS

// The PTX is what nvcc made of the CUDA C beside it, but for that of digest.cu:
// neither has been changed since scripts/kernels.sh ran.
func TestPTXIsOfTheSource(t *testing.T) {
	sums := ok(files.ReadFile("kernels.sum"))(t)
	want := map[string]string{}
	for line := range strings.Lines(string(sums)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		want[name] = sum
	}
	have := map[string]string{}
	names := ok(fs.Glob(files, "*.[cp]*"))(t)
	for _, name := range append(names, "digest/digest.cu", "digest/digest.ptx") {
		text := ok(files.ReadFile(name))(t)
		sum := sha256.Sum256(text)
		have[name] = hex.EncodeToString(sum[:])
	}
	require.Equal(t, want, have, "run scripts/kernels.sh where there is nvcc")
}

var entries = regexp.MustCompile(`(?s)\.visible \.entry (\w+)\((.*?)\)`)

// ptxTypes are the types of parameters in PTX.
var ptxTypes = map[string]string{"ptr": ".u64", "u64": ".u64", "u32": ".u32", "u8": ".u8", "f32": ".f32"}

func TestBuiltinsAreThoseOfThePTX(t *testing.T) {
	for _, b := range kernels.Builtins() {
		require.Contains(t, b.PTX, "\n.version 7.4\n.target sm_75\n")
		found := entries.FindAllStringSubmatch(b.PTX, -1)
		require.Len(t, found, len(b.Kernels), b.Name)
		for i, e := range found {
			k := b.Kernels[i]
			require.Equal(t, e[1], k.Name)
			require.NotEmpty(t, k.Does)
			params := strings.Split(e[2], ",")
			require.Len(t, params, len(k.Params), k.Name)
			for i, p := range params {
				require.Equal(t, ptxTypes[k.Params[i].Type], strings.Fields(p)[1], "%s, %s", k.Name, k.Params[i].Name)
			}
		}
	}
}

// The driver knows the same kernels.
func TestDriverKnowsTheBuiltins(t *testing.T) {
	ctx := cutest.Context(t, cutest.Device(t))
	size := map[string]uint64{"ptr": 8, "u64": 8, "u32": 4, "u8": 1, "f32": 4}
	for _, b := range kernels.Builtins() {
		m := ok(ctx.LoadModule([]byte(b.PTX)))(t)
		for _, k := range b.Kernels {
			f := ok(m.Function(k.Name))(t)
			params, err := f.Params()
			if !ctx.Device().Driver().Caller().Library().Has("cuFuncGetParamInfo") {
				require.ErrorIs(t, err, cu.ErrSymbolMissing)
				continue
			}
			require.NoError(t, err)
			require.Len(t, params, len(k.Params))
			for i, p := range params {
				require.Equal(t, size[k.Params[i].Type], p.Size, "%s, %s", k.Name, k.Params[i].Name)
			}
		}
		require.NoError(t, m.Close())
	}
}
