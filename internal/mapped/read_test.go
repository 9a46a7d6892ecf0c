package mapped

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A process that puts a pipe in its marker's place makes nobody wait.
func TestReadOfAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, unix.Mkfifo(path, 0o600))
	read := func() error { _, err := read(path); return err }
	done := make(chan error, 1)
	go func() { done <- read() }()
	select {
	case err := <-done:
		require.ErrorContains(t, err, "is no file of 8 bytes")
	case <-time.After(10 * time.Second):
		t.Fatal("it waits for a writer of the pipe")
	}
}
