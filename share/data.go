package share

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/made"
	"github.com/gpufd/gpufd/share/internal/wire"
)

// sealed is what nobody can do any more with the file that application data comes in, so
// that it is and stays memory of one size and content.
const sealed = unix.F_SEAL_WRITE | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// setData has the offering carry application data: what is more than fits an OFFER in a
// file, of which every consumer gets a descriptor.
func (o *offering) setData(b []byte) (err error) {
	if len(b) <= wire.MaxData {
		o.record.Data = append([]byte(nil), b...)
		return nil
	}
	o.record.DataSize = uint64(len(b))
	o.data, err = newDataFile(b)
	return err
}

// newDataFile makes a sealed file of b (memfd_create(2)).
func newDataFile(b []byte) (*os.File, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("gpufd data", flags|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate("gpufd data", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("share: %d bytes of application data: %w", len(b), os.NewSyscallError("memfd_create", err))
	}
	f := made.File(fd, "data")
	_, err = f.Write(b)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealed|unix.F_SEAL_SEAL)
		err = os.NewSyscallError("fcntl", err)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("share: %d bytes of application data: %w", len(b), err), f.Close())
	}
	return f, nil
}

// A parcel is one record of an offer, with the files that go along.
type parcel struct {
	record []byte
	files  []*os.File
}

// parcels are what a consumer is sent.
func (o *offering) parcels(m wire.Offer) (all []parcel) {
	files := o.loan.files
	if m.Resume != 0 {
		files = nil
	}
	for _, record := range m.Records(len(files)) {
		n := min(len(files), maxFDs)
		all = append(all, parcel{record, files[:n]})
		files = files[n:]
	}
	if o.data != nil {
		all = append(all, parcel{wire.Encode(wire.Data{}), []*os.File{o.data}})
	}
	return all
}

// addData takes the application data that comes behind the records of the offer. f is
// the caller's.
func (a *attaching) addData(f *os.File) error {
	if !a.whole {
		return unexpected(wire.Data{}, "before the offer was complete")
	}
	b, err := readSealed(f, a.offer.DataSize)
	if err != nil {
		return fmt.Errorf("%w: application data: %w", ErrWire, err)
	}
	a.data = b
	return nil
}

// readSealed reads a peer's file of that size. Seals come first: who asks another file for
// them is told at once that it has none, whereas to ask it for its size, or to read it, may
// take as long as the peer likes.
func readSealed(f *os.File, size uint64) ([]byte, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	cerr := raw.Control(func(fd uintptr) {
		var seals int
		if seals, err = unix.FcntlInt(fd, unix.F_GET_SEALS, 0); err != nil || seals&sealed != sealed {
			err = fmt.Errorf("the descriptor is no sealed memory (F_GET_SEALS: %#x, want %#x)", max(seals, 0), sealed)
			return
		}
		err = os.NewSyscallError("fstat", unix.Fstat(int(fd), &st))
	})
	switch {
	case err != nil || cerr != nil:
		return nil, errors.Join(err, cerr)
	case uint64(st.Size) != size:
		return nil, fmt.Errorf("it has %d bytes; the offer says %d", st.Size, size)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, int64(size)), b); err != nil { // pread(2)
		return nil, err
	}
	return b, nil
}
