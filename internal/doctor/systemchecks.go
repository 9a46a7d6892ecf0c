package doctor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/sock"
)

// system runs the checks that need neither a driver nor another process.
func (v *run) system(ctx context.Context) []Row {
	return []Row{uidMap(), v.sockets(ctx), shm(), pidNamespace(), mps()}
}

// sockets connects to the socket of GPUFD_SOCKET, or to the default one. If nobody listens there, it
// listens in the directory of that socket, and connects. A container may have no other place for
// sockets than that of GPUFD_SOCKET.
func (v *run) sockets(ctx context.Context) Row {
	if v.Named == "" {
		if c, err := sock.Dial(ctx, v.Socket); err == nil && c.Close() == nil {
			return row("socket", OK, "", "the default socket, %s, was connected to", v.Socket)
		}
		dir := filepath.Dir(v.Socket)
		if err := os.Mkdir(dir, 0o700); err == nil {
			defer os.Remove(dir) // it was not there
		} else if !errors.Is(err, os.ErrExist) {
			return failed("socket", Fail, newFault(err), facts{})
		}
		if err := meetBeside(ctx, v.Socket); err != nil {
			return failed("socket", Fail, newFault(err), facts{})
		}
		return row("socket", OK, "", "a socket in %s was listened at and connected to", dir)
	}
	c, err := sock.Dial(ctx, v.Named)
	if err == nil {
		err = c.Close()
	}
	if err == nil {
		return row("socket", OK, "", "the socket of GPUFD_SOCKET, %s, was connected to", v.Named)
	}
	if errors.Is(err, sock.ErrNoListener) {
		beside := meetBeside(ctx, v.Named)
		if beside == nil {
			return row("socket", Warn, "socket-dead", "nobody listens at the socket of GPUFD_SOCKET, %s; another socket in its directory was listened at and connected to", v.Named)
		}
		err = fmt.Errorf("nobody listens at the socket of GPUFD_SOCKET, %s, and nobody can: %w", v.Named, beside)
	}
	return failed("socket", Fail, newFault(err), facts{})
}

// meetBeside meets at a path that is in path's directory and as long: what is longer is what
// may not work.
func meetBeside(ctx context.Context, path string) error {
	dir, base := filepath.Split(path)
	name := ""
	for len(name) < len(base) {
		name += strconv.FormatUint(rand.Uint64(), 36)
	}
	return meet(ctx, dir+name[:len(base)])
}

// meet listens at path and connects.
func meet(ctx context.Context, path string) error {
	l, err := sock.Listen(path)
	if err != nil {
		return err
	}
	met := make(chan error, 1)
	go func() {
		c, err := l.Accept(ctx)
		if err == nil {
			err = c.Close()
		}
		met <- err
	}()
	c, err := sock.Dial(ctx, path)
	if err == nil {
		err = errors.Join(<-met, c.Close())
	}
	return errors.Join(err, l.Remove(), l.Close())
}

// shmDir is where libcuda and the C library have files of shared memory.
const shmDir = "/dev/shm"

// shm writes a file in /dev/shm.
func shm() Row {
	f, err := os.CreateTemp(shmDir, ".gpufd-doctor-")
	if err != nil {
		return row("shm", Fail, "", "%v", err)
	}
	_, err = f.Write(make([]byte, 64<<10))
	if err = errors.Join(err, f.Close(), os.Remove(f.Name())); err != nil {
		return row("shm", Fail, "", "%s", cli.OneLine(err))
	}
	var st unix.Statfs_t
	if err := unix.Statfs(shmDir, &st); err != nil {
		return row("shm", Unknown, "", "a file was written, but its file system does not tell how much is free: %v", err)
	}
	free := st.Bavail * uint64(st.Bsize)
	if free < 1<<20 {
		return row("shm", Warn, "", "a file of 64 KiB was written, and %d KiB are free", free>>10)
	}
	return row("shm", OK, "", "a file of 64 KiB was written, and %d MiB are free", free>>20)
}

func pidNamespace() Row {
	id, err := identityOf("self")
	switch {
	case err != nil:
		return row("pid-namespace", Unknown, "", "%v", err)
	case id.PID == 1:
		return row("pid-namespace", Warn, "", "this is process 1 of %s, as the first process of every container is", id.Namespaces["pid"])
	}
	return row("pid-namespace", OK, "", "this is process %d of %s", id.PID, id.Namespaces["pid"])
}

func uidMap() Row {
	id, err := identityOf("self")
	if err != nil {
		return row("uid-map", Unknown, "", "%v", err)
	}
	if !isIdentityMap(id.UIDMap) && os.Geteuid() == int(overflowUID()) {
		return row("uid-map", Fail, "", "this user has no number in its user namespace, whose map is %q", id.UIDMap)
	}
	return row("uid-map", OK, "", "this is uid %d, and the map of its user namespace is %q", os.Geteuid(), id.UIDMap)
}

// mps looks for the socket of the MPS daemon, and does not connect to it.
func mps() Row {
	dir, set := os.LookupEnv("CUDA_MPS_PIPE_DIRECTORY")
	if !set {
		dir = "/tmp/nvidia-mps"
	}
	_, err := os.Stat(filepath.Join(dir, "control"))
	switch {
	case err == nil:
		return row("mps-directory", Unknown, "", "%s/control is there; doctor does not connect to it", dir)
	case set:
		return row("mps-directory", Warn, "", "CUDA_MPS_PIPE_DIRECTORY=%s has no control socket: %v", dir, err)
	}
	return row("mps-directory", Unknown, "", "CUDA_MPS_PIPE_DIRECTORY is not set and %s is not there: MPS was not tried", dir)
}
