package handoff

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/pattern"
	"github.com/gpufd/gpufd/share"
)

func TestSalt(t *testing.T) {
	programs.Parallel(t)
	for _, salt := range []string{"1", "4294967295", "0x5EED"} {
		t.Run(salt, func(t *testing.T) {
			programs.Parallel(t)
			if salt != "0x5EED" {
				cutest.ProvenOnSoft(t)
			}
			s, producer := serving(t, "-salt", salt, "-consumers", "2")
			s.Consumer().Succeeds()
			s.Consumer("-expect-salt", salt).Succeeds()
			producer.Succeeds()
		})
	}
}

// TestFault67_WrongSalt: data of another run is not accepted, by either side.
func TestFault67_WrongSalt(t *testing.T) {
	programs.Parallel(t)
	for _, c := range []struct{ salt, expect uint64 }{{0, 1}, {1, 0}, {7, 1 << 31}} {
		t.Run(fmt.Sprintf("%d for %d", c.salt, c.expect), func(t *testing.T) {
			programs.Parallel(t)
			s, producer := serving(t, "-size", "1030", "-salt", programs.Decimal(c.salt))
			consumer := s.Consumer("-expect-salt", programs.Decimal(c.expect))
			want, got := pattern.At(0, uint32(c.expect)), pattern.At(0, uint32(c.salt))
			words := []string{"index 0", fmt.Sprintf("want 0x%08x", want), fmt.Sprintf("got 0x%08x", got)}

			consumer.Fails(1, append(words, " are wrong")...)
			producer.Fails(1, append(words, "the consumer reports", "pid "+programs.PIDText(consumer))...)
			require.Len(t, programs.Find(consumer, "Data verification FAILED ("), 1, consumer.Dump())
			require.Len(t, programs.Find(consumer, "Sent acknowledgment to producer"), 1, consumer.Dump())
			require.Len(t, programs.Find(producer, "Consumer reported a failure: "), 1, producer.Dump())
			require.Empty(t, programs.Find(producer, "Consumer verified"), producer.Dump())
		})
	}
}

// TestFault65_FlippedBit defends invariant 6: one bit, flipped by a third
// process, makes both sides fail, and consumers name the integer, whether the host
// or the device compares.
func TestFault65_FlippedBit(t *testing.T) {
	programs.Parallel(t)
	for name, c := range map[string]struct {
		size, chunk, offset uint64
		bit                 int
	}{
		"first integer":                       {size: programs.MiB, offset: 0, bit: 0},
		"last integer":                        {size: programs.MiB, offset: programs.MiB - 1, bit: 7},
		"middle":                              {size: programs.MiB, offset: programs.MiB/2 + 1, bit: 3},
		"only byte":                           {size: 1, offset: 0, bit: 7},
		"last byte of a partial integer":      {size: 3, offset: 2, bit: 7},
		"partial integer after a whole one":   {size: 5, offset: 4, bit: 0},
		"partial integer in the next chunk":   {size: 2*programs.MiB + 1, chunk: 2 * programs.MiB, offset: 2 * programs.MiB, bit: 1},
		"last byte of a chunk":                {size: 10*programs.MiB + 1, chunk: 2 * programs.MiB, offset: 4*programs.MiB - 1, bit: 7},
		"first byte of a chunk":               {size: 10*programs.MiB + 1, chunk: 2 * programs.MiB, offset: 4 * programs.MiB, bit: 0},
		"last byte of a piece":                {size: 64*programs.MiB + 3, offset: 64*programs.MiB - 1, bit: 4},
		"first byte of the second piece":      {size: 64*programs.MiB + 3, offset: 64 * programs.MiB, bit: 4},
		"last byte of a kernel's piece":       {size: 3*programs.MiB + 2, offset: programs.MiB - 1, bit: 6},
		"first byte of a kernel's piece":      {size: 3*programs.MiB + 2, offset: 2 * programs.MiB, bit: 0},
		"partial integer of a kernel's piece": {size: 3*programs.MiB + 2, offset: 3*programs.MiB + 1, bit: 2},
		"a chunk of the offer's third record": {size: 130*2*programs.MiB - 2, chunk: 2 * programs.MiB, offset: 260*programs.MiB - 3, bit: 5},
	} {
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			if strings.Contains(name, "partial") || strings.HasPrefix(name, "first") || name == "middle" || name == "last byte of a piece" {
				cutest.ProvenOnSoft(t)
			}
			s := programs.NewScene(t)
			ways := waysFor(c.size)
			producer := s.Flipped(c.size, c.chunk, c.offset, c.bit, "-consumers", strconv.Itoa(1+len(ways)))
			words := fmt.Sprintf("first at index %d, want 0x", c.offset/4)
			var said []string
			for _, way := range ways {
				consumer := s.Consumer("-verify", way)
				consumer.Fails(1, words, "; 1 integer is wrong")
				said = append(said, programs.Find(consumer, "Data verification FAILED (1 of "+cli.Count(pattern.Count(c.size), "integer")+" wrong")...)
				require.Len(t, programs.Find(consumer, "  verifying on the "+strings.ToUpper(way)), 1, consumer.Dump())
			}
			producer.Fails(1, words)
			require.Len(t, said, len(ways))
			require.Len(t, slices.Compact(said), 1, "both say the same")
			require.Len(t, programs.Find(producer, "Consumer verified data successfully!"), 1, "the first one, which flipped it")
		})
	}
}

// TestFlipBesideTheData: what lies behind the data, up to the aligned size, is
// nobody's concern.
func TestFlipBesideTheData(t *testing.T) {
	programs.Parallel(t)
	s := programs.NewScene(t)
	producer := s.Flipped(5, 0, 5, 0)
	s.Consumer().Succeeds()
	producer.Succeeds()
}

// TestReadOnlyCannotWrite defends invariant 7: what attached read-only, which
// is the default, is refused by the driver, and the data stays good.
//
//fault:rows 70
func TestReadOnlyCannotWrite(t *testing.T) {
	programs.Parallel(t)
	s, producer := serving(t, "-access", "rw", "-consumers", "2")
	att := s.MustAttach(share.AttachOptions{})
	requireReadOnly(t, att)
	programs.Report(t, att, nil)
	s.Consumer().Succeeds()
	producer.Succeeds()
}

// requireReadOnly tries to write through the attachment.
func requireReadOnly(t testing.TB, att *share.Attachment) {
	t.Helper()
	ctx := cutest.Context(t, att.Buffer().Device())
	err := cu.CopyToDevice(ctx, att.Buffer().Ptr(), []byte{1, 2, 3, 4})
	require.ErrorIs(t, err, cu.ErrInvalidValue)
}
