package sock

import (
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/gpumem"
)

// Errors of wrong usage. The caller has to change its arguments.
var (
	// ErrPath says that the socket path is empty, has a NUL, names a directory, or is
	// longer than the 107 bytes that a Unix address has room for.
	ErrPath = errors.New("malformed socket path")

	// ErrTooLong says that a record is longer than MaxRecord and cannot be sent.
	ErrTooLong = errors.New("record too long")
)

// Errors about the socket's path and the process that listens there.
var (
	// ErrNoDirectory says that the directory of the socket does not exist.
	ErrNoDirectory = errors.New("no such directory")

	// ErrInsecure says that another user could replace the socket: its directory
	// belongs to another user, or its group or others may write to it.
	ErrInsecure = errors.New("directory is not safe for a socket")

	// ErrNotSocket says that the path names a symbolic link, a file, a directory, or
	// a socket of another type.
	ErrNotSocket = errors.New("not a SOCK_SEQPACKET socket")

	// ErrListening says that another process listens at this path.
	ErrListening = errors.New("another process is listening there")

	// ErrNoListener says that no process listens at this path.
	ErrNoListener = errors.New("nobody is listening there")

	// ErrNotListener says that the predecessor did not hand over the path's listener
	// and its lock, or withdrew them.
	ErrNotListener = errors.New("no listener to take over")

	// ErrNotAdmitted matches every *NotAdmittedError: the Policy does not admit the peer.
	ErrNotAdmitted = errors.New("peer not admitted")
)

// Errors of a connection.
var (
	// ErrClosed says that the Conn or Listener was closed on this side. It is
	// [gpumem.ErrClosed].
	ErrClosed = gpumem.ErrClosed

	// ErrHandedOver says that another process has the listener (HandOver). It matches
	// ErrClosed.
	ErrHandedOver = fmt.Errorf("handed over to another process: %w", ErrClosed)

	// ErrPeerLost says that the peer closed the connection or died. The error also
	// matches io.EOF if the peer had read everything, and ECONNRESET if it had not.
	ErrPeerLost = errors.New("peer lost")

	// ErrTooManyInFlight says that the context was done while this user still had too
	// many descriptors in flight: more were sent and not yet received than its limit of
	// open files allows (ETOOMANYREFS).
	ErrTooManyInFlight = errors.New("too many file descriptors in flight")

	// ErrWouldWait says that TrySend has sent nothing, because the peer's queue is
	// full, another Send is under way, or too many descriptors are in flight.
	ErrWouldWait = errors.New("sending would have to wait")

	// ErrNoProcess says that the kernel gives no descriptor of the peer's process. The
	// kernel is older than Linux 5.3; or it is older than 6.5 and the peer is in another
	// PID namespace; or a security module forbids it.
	ErrNoProcess = errors.New("no descriptor of the peer's process")

	// ErrUnexpectedRecord says that the peer kept sending records instead of closing
	// the connection (WaitClose).
	ErrUnexpectedRecord = errors.New("the peer goes on sending instead of closing")
)

// Errors of a received record ([IsBadRecord]). This side has closed its descriptors.
var (
	// ErrEmptyRecord says that a record of length 0 arrived, with or without
	// descriptors.
	ErrEmptyRecord = errors.New("record of length 0")

	// ErrTruncated says that a record arrived that is longer than MaxRecord, or than
	// WithMaxRecord allows (MSG_TRUNC).
	ErrTruncated = errors.New("record cut off")

	// ErrControlTruncated says that the kernel could not install all descriptors of
	// the record (MSG_CTRUNC), usually because this process has run out of them.
	ErrControlTruncated = errors.New("file descriptors were lost")

	// ErrTooManyFDs says that a record has more than MaxFDs descriptors, or more than
	// WithMaxFDs allows.
	ErrTooManyFDs = errors.New("too many file descriptors in one record")

	// ErrControl says that a control message is malformed, or of a type that this
	// package did not ask for.
	ErrControl = errors.New("unexpected control message")

	// ErrUnfit says that another user sent a descriptor whose close(2) may wait for that
	// user: of a file on FUSE, a socket, a pipe. Of another user, descriptors are taken of
	// memory (memfd_create(2), tmpfs), of files on disks, of NVIDIA's devices and of what the
	// kernel alone answers for (anon_inode).
	ErrUnfit = errors.New("a file descriptor that closing may wait for")

	// ErrStuck says that a bad record with descriptors stays at the head of the queue,
	// so that nothing more can be received on this connection: close it. From then on
	// Receive and WaitClose return the same error, which also says what is wrong with
	// the record. Sending and [Conn.WaitHangup] still work.
	ErrStuck = errors.New("nothing more can be received: close the connection")
)

// An Error is returned by every operation of this package, except for a refused
// peer. It wraps the sentinel, the kernel's error (a syscall.Errno) and the context's
// error, if there are any.
type Error struct {
	Op    string // "listen", "accept", "dial", "send", "receive", ...
	Where string // the socket's path, or the peer
	Err   error
}

// Error names the operation, the place and the cause.
func (e *Error) Error() string {
	if e.Where == "" {
		return fmt.Sprintf("sock: %s: %v", e.Op, e.Err)
	}
	return fmt.Sprintf("sock: %s %s: %v", e.Op, e.Where, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// opError is the one place that makes an *Error. nil in, nil out.
func opError(op, where string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Where: where, Err: err}
}

// A NotAdmittedError names the peer that was turned away, and why. It matches ErrNotAdmitted.
type NotAdmittedError struct {
	Peer   Peer
	Reason string
}

// Error names the peer and the reason.
func (e *NotAdmittedError) Error() string {
	return fmt.Sprintf("sock: peer not admitted (%v): %s", e.Peer, e.Reason)
}

// Is reports whether target is ErrNotAdmitted.
func (e *NotAdmittedError) Is(target error) bool { return target == ErrNotAdmitted }
