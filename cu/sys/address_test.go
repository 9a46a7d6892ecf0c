package sys

import (
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// A pinned slice is still at the address that Address returned after the stack has moved. The slice
// beside it, to which no pointer leaves, shows that the stack does move.
func TestAddressStays(t *testing.T) {
	onFreshStack(func() {
		var pins runtime.Pinner
		defer pins.Unpin()
		loose, log := make([]byte, 512), make([]byte, 512)
		at, address := uintptr(unsafe.Pointer(&loose[0])), Address(&pins, log)
		grow(200)
		require.NotEqual(t, at, uintptr(unsafe.Pointer(&loose[0])), "the stack has not moved: this test shows nothing")
		require.Equal(t, address, uintptr(unsafe.Pointer(&log[0])))
	})
	require.Zero(t, Address(new(runtime.Pinner), []int32{}))
}
