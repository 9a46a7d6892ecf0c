package cli

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// OfferName is the name under which the demo's producer offers its buffer.
const OfferName = "producer"

// DefaultSocket returns where producer and consumer meet: in the user's runtime
// directory, or in a directory of the user's under the temporary directory.
func DefaultSocket() string { return filepath.Join(defaultDir(), "producer.sock") }

func defaultDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "gpufd")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("gpufd-%d", os.Getuid()))
}

// MakeDefaultDir makes the directory of path, with mode 0700, if path is the default.
// Any other directory must exist.
func MakeDefaultDir(path string) error {
	if path != DefaultSocket() {
		return nil
	}
	err := os.Mkdir(defaultDir(), 0o700)
	if err == nil || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return fmt.Errorf("making the socket's directory: %w; choose another with --socket", err)
}
