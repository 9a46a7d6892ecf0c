package vmm_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// makings are the two ways to make a buffer of one chunk in a reservation.
func makings(t *testing.T, dev *cu.Device) map[string]func(opts ...vmm.Option) (*vmm.Buffer, error) {
	g := granularity(t, dev)
	return map[string]func(opts ...vmm.Option) (*vmm.Buffer, error){
		"new": func(opts ...vmm.Option) (*vmm.Buffer, error) {
			var some []vmm.NewOption
			for _, o := range opts {
				some = append(some, o)
			}
			return vmm.New(dev, g-1, some...)
		},
		"import": func(opts ...vmm.Option) (*vmm.Buffer, error) {
			buf := ok(vmm.New(dev, g-1))(t)
			d, files := export(t, buf)
			require.NoError(t, buf.Close())
			some := []vmm.ImportOption{vmm.WithAccess(cu.ReadWrite)}
			for _, o := range opts {
				some = append(some, o)
			}
			got, err := vmm.Import(dev, d, files, some...)
			closeFiles(t, files)
			return got, err
		},
	}
}

func reserve(t *testing.T, dev *cu.Device, size uint64) *vmm.Reservation {
	t.Helper()
	return ok(vmm.Reserve(dev.Driver(), size))(t)
}

// A reservation stays its owner's, whatever comes of it, and one buffer after the other is mapped at
// its address.
func TestBuffersInAReservation(t *testing.T) {
	b, dev, ctx, g := tidy(t)
	for _, size := range []uint64{g, 3 * g} {
		r := reserve(t, dev, size)
		owed := b.owed()
		for name, create := range makings(t, dev) {
			for seed := range 2 {
				reserved := b.count("cuMemAddressReserve")
				if name == "import" {
					reserved++ // of the buffer that is imported
				}
				buf := ok(create(vmm.WithReservation(r)))(t, name)
				require.Equal(t, reserved, b.count("cuMemAddressReserve"))
				require.Equal(t, r.Ptr(), buf.Ptr())
				require.Equal(t, g, buf.Mapped())
				write(t, ctx, buf.Ptr(), noise(g, seed))
				require.ErrorIs(t, r.Close(), vmm.ErrMapped)
				require.ErrorIs(t, errOf(create(vmm.WithReservation(r))), vmm.ErrOccupied)
				require.ErrorIs(t, buf.Grow(g+1), vmm.ErrCapacity)
				require.True(t, string(noise(g, seed)) == string(read(t, ctx, buf.Ptr(), g)))
				require.NoError(t, buf.Close())
				require.Equal(t, owed, b.owed())
			}
		}
		require.ErrorIs(t, errOf(vmm.New(dev, 4*g, vmm.WithReservation(r))), vmm.ErrCapacity)
		require.Equal(t, owed, b.owed())
		require.NoError(t, r.Close())
		require.Equal(t, owesNothing, b.owed())
		require.ErrorIs(t, errOf(vmm.New(dev, g, vmm.WithReservation(r))), cu.ErrClosed)
	}
}

// One that was reserved for growth is grown into.
func TestBufferGrowsInAReservation(t *testing.T) {
	_, dev, _, g := tidy(t)
	r := reserve(t, dev, 3*g)
	buf := ok(vmm.New(dev, g, vmm.WithCapacity(3*g), vmm.WithReservation(r)))(t)
	require.NoError(t, buf.Grow(3*g))
	require.Equal(t, r.Ptr(), buf.Ptr())
	require.NoError(t, buf.Close())
	require.NoError(t, r.Close())
}

func TestReservationOfNothingIsNone(t *testing.T) {
	_, dev, _, _ := tidy(t)
	for name, create := range makings(t, dev) {
		require.NoError(t, ok(create(vmm.WithReservation(nil)))(t, name).Close())
	}
}

// Whatever keeps the buffer from being made, nothing is left in the reservation.
func TestReservationIsLeftWhateverComesOfIt(t *testing.T) {
	b, dev, _, g := tidy(t)
	importing := func(change func(d *vmm.Descriptor, files *[]*os.File)) func(vmm.Option) error {
		return func(given vmm.Option) error {
			buf := ok(vmm.New(dev, 2*g))(t)
			d, files := export(t, buf)
			all := files
			change(&d, &files)
			_, err := vmm.Import(dev, d, files, given)
			closeFiles(t, all)
			require.NoError(t, buf.Close())
			return err
		}
	}
	as := func(*vmm.Descriptor, *[]*os.File) {}
	for name, c := range map[string]struct {
		create func(vmm.Option) error
		want   error
	}{
		"new, too small":         {func(o vmm.Option) error { _, err := vmm.New(dev, 2*g, o); return err }, vmm.ErrCapacity},
		"new, too small to grow": {func(o vmm.Option) error { _, err := vmm.New(dev, g, o, vmm.WithCapacity(2*g)); return err }, vmm.ErrCapacity},
		"new, no size":           {func(o vmm.Option) error { _, err := vmm.New(dev, 0, o); return err }, vmm.ErrSize},
		"import, too small":      {importing(as), vmm.ErrCapacity},
		"import, no size":        {importing(func(d *vmm.Descriptor, _ *[]*os.File) { d.Size = 0 }), vmm.ErrDescriptor},
		"import, other kind":     {importing(func(d *vmm.Descriptor, _ *[]*os.File) { d.Kind = cu.CUDA + cu.Soft - d.Kind }), vmm.ErrKind},
		"import, no files":       {importing(func(_ *vmm.Descriptor, f *[]*os.File) { *f = nil }), vmm.ErrDescriptor},
		"import, a size lie":     {importing(func(d *vmm.Descriptor, _ *[]*os.File) { d.Size, d.ChunkSize = g, g }), vmm.ErrDescriptor},
	} {
		t.Run(name, func(t *testing.T) {
			r := reserve(t, dev, g)
			owed := b.owed()
			require.ErrorIs(t, c.create(vmm.WithReservation(r)), c.want)
			require.Equal(t, owed, b.owed())
			require.NoError(t, r.Close())
			require.Equal(t, owesNothing, b.owed())
		})
	}
}
