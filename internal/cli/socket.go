package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpufd/gpufd/internal/sockets"
	"github.com/gpufd/gpufd/sock"
)

// OfferName is the name under which the demo's producer offers its buffer.
const OfferName = "producer"

// DefaultSocket returns where producer and consumer meet: in the user's runtime
// directory, or in a directory of the user's under the temporary directory.
func DefaultSocket() string { return filepath.Join(sockets.UserDir(), "producer.sock") }

// MakeDefaultDir makes the directory of the default sockets, with mode 0700. It leaves it to
// whoever listens there to say why there is none.
func MakeDefaultDir() { _ = os.Mkdir(sockets.UserDir(), 0o700) }

// Listen calls listen for a socket at path, and once more if the directory of the socket alone
// was missing and is made now, with mode 0700. A keeper does so, too.
func Listen[T any](path string, listen func() (T, error)) (T, error) {
	l, err := listen()
	if !errors.Is(err, sock.ErrNoDirectory) {
		return l, err
	}
	if made := os.Mkdir(filepath.Dir(path), 0o700); made != nil && !errors.Is(made, fs.ErrExist) { // somebody else may have been faster
		return l, err
	}
	return listen()
}
