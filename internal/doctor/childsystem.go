package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// take takes a descriptor from another process.
func (c *child) take(r request, _ []*os.File, _ *answer) error {
	pidfd, err := unix.PidfdOpen(r.PID, 0)
	if err != nil {
		return marked{fmt.Errorf("pidfd_open of process %d: %w", r.PID, err), "pidfd-getfd"}
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, r.FD, 0)
	if err != nil {
		return marked{fmt.Errorf("pidfd_getfd from process %d: %w", r.PID, err), "pidfd-getfd"}
	}
	return unix.Close(fd)
}

// connect connects to an abstract socket.
func (c *child) connect(r request, _ []*os.File, _ *answer) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: "@" + r.Name}); err != nil {
		return marked{fmt.Errorf("connecting to the abstract socket @%s: %w", r.Name, err), "abstract-socket"}
	}
	return nil
}

// shm answers which /dev/shm the process has.
func (c *child) shm(_ request, _ []*os.File, a *answer) (err error) {
	a.Seen, err = shmOf("self")
	return err
}

// attach takes an offer, and verifies its memory if it comes from [Offer].
func (c *child) attach(r request, _ []*os.File, a *answer) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), time.Duration(r.Count)*time.Millisecond, share.ErrTimeout)
	defer cancel()
	policy := sock.Policy{UIDs: r.UIDs}
	dev, err := c.offered(ctx, r, policy, a)
	if err != nil {
		return err
	}
	at, err := share.Attach(ctx, r.Path, r.Name, dev, &share.AttachOptions{Policy: policy})
	if err != nil {
		return err
	}
	err = c.read(at, a)
	return errors.Join(err, at.Close())
}

// offered returns the device of the offer that was asked for.
func (c *child) offered(ctx context.Context, r request, policy sock.Policy, a *answer) (*cu.Device, error) {
	all, err := share.List(ctx, r.Path, &share.ListOptions{Policy: policy})
	if err != nil {
		return nil, err
	}
	for _, l := range all {
		a.Names, a.Devices = append(a.Names, l.Name), append(a.Devices, deviceInfo{UUID: l.Device})
	}
	for _, l := range all {
		if l.Name == r.Name {
			return c.device(l.Device)
		}
	}
	return nil, marked{fmt.Errorf("%w: %q", errNoOffer, r.Name), "peer"}
}

// errNoOffer says that there is no offer of a name.
var errNoOffer = errors.New("there is no offer of that name")

// read reads, and for [Offer] verifies, the bytes of an attachment.
func (c *child) read(at *share.Attachment, a *answer) error {
	ctx, err := c.context(at.Device().UUID(), false)
	if err != nil {
		return err
	}
	n := min(at.Size(), size)
	a.Seen = fmt.Sprintf("%d bytes were attached to and read", n)
	g := new(hello)
	if at.Offer().Name != OfferName || json.Unmarshal(at.Offer().Data, g) != nil {
		b := make([]byte, n)
		return cu.CopyToHost(ctx, b, at.Ptr())
	}
	a.Greeting, a.Seen = g, fmt.Sprintf("%d bytes were attached to and verified", n)
	return check(ctx, at.Ptr(), n, g.Salt)
}
