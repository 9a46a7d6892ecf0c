package sock

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// controlSize is room for all descriptors that the kernel can bring in one
// record (SCM_MAX_FD, 253), so that too many are seen and closed, and for the other messages
// (credentials, security label, pidfd) that a socket made elsewhere may yield.
const controlSize = 2048

// limits bound what one record may bring.
type limits struct {
	record int // bytes
	fds    int
}

// mostLimits are the limits of a connection without LimitOptions.
var mostLimits = limits{MaxRecord, MaxFDs}

// controlSize is the room for control messages. Below MaxFDs it has no room for one
// descriptor too many, not even in the padding. The kernel installs what fits and
// reports the rest (MSG_CTRUNC); without any room it installs nothing.
func (l limits) controlSize() int {
	switch {
	case l.fds >= MaxFDs:
		return controlSize
	case l.fds == 0:
		return 0
	}
	return cmsgHeader + 4*l.fds
}

// scmPidfd is SCM_PIDFD of linux/socket.h: it installs a descriptor, too.
const scmPidfd = 4

// cmsgAlign and the size of cmsg_len differ between 32 and 64 bits; both follow
// from the size of struct cmsghdr, whose last 8 bytes are level and type.
const (
	cmsgHeader = unix.SizeofCmsghdr
	cmsgAlign  = cmsgHeader - 8
)

// parseControl returns every descriptor that the control messages in oob
// (cmsg(3)) brought, even with an error: the caller closes them. The parsers of
// x/sys would leak descriptors, because they return none once a message is
// malformed, and they panic on half a descriptor.
func parseControl(oob []byte) (fds []int, err error) {
	for len(oob) > 0 {
		if len(oob) < cmsgHeader {
			return fds, errors.Join(err, fmt.Errorf("%w: %d bytes left over", ErrControl, len(oob)))
		}
		size := cmsgLen(oob)
		if size < cmsgHeader {
			return fds, errors.Join(err, fmt.Errorf("%w: length %d", ErrControl, size))
		}
		if size > uint64(len(oob)) { // cut off: what is left of it counts
			err = errors.Join(err, fmt.Errorf("%w: length %d of %d", ErrControl, size, len(oob)))
			size = uint64(len(oob))
		}
		more, ferr := controlFDs(oob[:size])
		fds, err = append(fds, more...), errors.Join(err, ferr)
		oob = oob[min(alignUp(int(size)), len(oob)):]
	}
	return fds, err
}

// controlFDs returns the descriptors of one message, header included.
func controlFDs(msg []byte) (fds []int, err error) {
	level := int32(binary.NativeEndian.Uint32(msg[cmsgAlign:]))
	kind := int32(binary.NativeEndian.Uint32(msg[cmsgAlign+4:]))
	rights := level == unix.SOL_SOCKET && kind == unix.SCM_RIGHTS
	pidfd := level == unix.SOL_SOCKET && kind == scmPidfd
	if !rights {
		err = fmt.Errorf("%w: level %d type %d", ErrControl, level, kind)
	}
	if !rights && !pidfd {
		return nil, err
	}
	data := msg[cmsgHeader:]
	for ; len(data) >= 4; data = data[4:] {
		fd := int32(binary.NativeEndian.Uint32(data))
		if fd < 0 {
			err = errors.Join(err, fmt.Errorf("%w: descriptor %d", ErrControl, fd))
			continue
		}
		fds = append(fds, int(fd))
	}
	if len(data) > 0 {
		err = errors.Join(err, fmt.Errorf("%w: %d bytes after the last descriptor", ErrControl, len(data)))
	}
	return fds, err
}

func cmsgLen(msg []byte) uint64 {
	if cmsgAlign == 4 {
		return uint64(binary.NativeEndian.Uint32(msg))
	}
	return binary.NativeEndian.Uint64(msg)
}

func alignUp(n int) int { return (n + cmsgAlign - 1) &^ (cmsgAlign - 1) }

// closeFDs closes descriptors that no os.File owns yet.
func closeFDs(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd) // it is gone whatever close(2) says
	}
}
