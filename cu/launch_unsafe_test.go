package cu

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// However many arguments there are, C finds them aligned, and behind them, where
// the driver does not tell their number, as many zeros as kernels take.
func TestArgumentsInMemory(t *testing.T) {
	ctx, _, _ := hollow(t)
	f := &Function{ctx: ctx, owner: new(gate), name: "f"}
	var args []any
	for n := range 32 {
		f.params.Store(nil)
		l := &Launch{f: f}
		require.NoError(t, l.lay(nil, args))
		for _, p := range l.args[:n] {
			require.Zero(t, uintptr(p)%argAlign, "of %d", n)
		}
		require.Len(t, l.args, n+spareArgs+1)
		for _, p := range l.args[n:] {
			require.Equal(t, unsafe.Pointer(&zeros), p)
		}
		args = append(args, [3]uint32{1, 2, uint32(n)})
	}
	const mostOfCUDA12 = 32764
	require.GreaterOrEqual(t, unsafe.Sizeof(zeros), uintptr(mostOfCUDA12))
}
