package vmm_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/vmm"
)

// childTellsGeneration makes a buffer and prints its generation.
func childTellsGeneration() error {
	dev := get(get(cutest.Open()).Device(0))
	buf := get(vmm.New(dev, 1))
	fmt.Println(buf.Describe().Generation)
	return buf.Close()
}

// A producer that starts again begins where the one before it ended: memory of an
// earlier run is told from that of a later one, whoever made either.
func TestFault67_GenerationsGoOnInTheNextProcess(t *testing.T) {
	dev := cutest.Device(t)
	last := uint64(0)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		out, err := cutest.Child(ctx, "tells its generation").Output()
		cancel()
		require.NoError(t, err)
		theirs := ok(strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64))(t)
		require.Greater(t, theirs, last)
		last = newBuffer(t, dev, 1).Describe().Generation
		require.Greater(t, last, theirs)
	}
}
