package cutest_test

import (
	"errors"
	"testing"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// pair allocates two pieces of memory. If there is none for the second, it
// forgets the first.
func pair(ctx *cu.Context, size uint64) (a, b *cu.Memory, err error) {
	if a, err = ctx.Alloc(size); err != nil {
		return nil, nil, err
	}
	if b, err = ctx.Alloc(size); err != nil {
		return nil, nil, err
	}
	return a, b, nil
}

// In a package of your own this is func TestPairWithoutMemory(t *testing.T).
func testPairWithoutMemory(t testing.TB) {
	faults := cutest.NewFaults(t)
	ctx := cutest.Context(t, cutest.Device(t, faults.Option()))
	faults.FailNth("cuMemAlloc", 2, cu.ErrOutOfMemory)
	if _, _, err := pair(ctx, 4096); !errors.Is(err, cu.ErrOutOfMemory) {
		t.Errorf("pair: %v, want %v", err, cu.ErrOutOfMemory)
	}
}

// A test makes the driver fail, and finds a mistake that shows only then.
func Example() {
	goTest("TestPairWithoutMemory", testPairWithoutMemory)
	// Output:
	// --- FAIL: TestPairWithoutMemory
	// cutest: the test did not close this in its context (AllowUnclosed allows that):
	//   device memory: 1, of 4096 bytes in all, made at
	//     …
}
