package share

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
)

// sealed are the seals of a file of application data: its size and content cannot change.
const sealed = descriptor.Content

// addData reads the application data that comes behind the records of the offer. The
// caller keeps f.
func (a *attaching) addData(f *os.File) error {
	if !a.whole {
		return serve.Unexpected(wire.Data{}, "before the offer was complete")
	}
	if !a.awaitsDataFile() {
		return serve.Unexpected(wire.Data{}, "where none belongs")
	}
	b, err := readSealed(f, a.offer.DataSize)
	if err != nil {
		return fmt.Errorf("%w: application data: %w", wire.ErrMalformed, err)
	}
	a.data = b
	return nil
}

// readSealed reads a peer's file of that size.
func readSealed(f *os.File, size uint64) ([]byte, error) {
	if err := checkSealed(f, size, sealed); err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(f, 0, int64(size)), b); err != nil { // pread(2)
		return nil, err
	}
	return b, nil
}

// checkSealed checks that a peer's file is sealed memory of that size. It asks for the
// seals first: any other file answers that at once, while asking for its size, or reading
// it, may take as long as the peer likes.
func checkSealed(f *os.File, size uint64, want int) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var st unix.Stat_t
	cerr := raw.Control(func(fd uintptr) {
		var seals int
		if seals, err = unix.FcntlInt(fd, unix.F_GET_SEALS, 0); err != nil || seals&want != want {
			err = fmt.Errorf("the descriptor is no sealed memory (F_GET_SEALS: %#x, want %#x)", max(seals, 0), want)
			return
		}
		err = os.NewSyscallError("fstat", unix.Fstat(int(fd), &st))
	})
	switch {
	case err != nil || cerr != nil:
		return errors.Join(err, cerr)
	case uint64(st.Size) != size:
		return fmt.Errorf("it has %d bytes; the offer says %d", st.Size, size)
	}
	return nil
}
