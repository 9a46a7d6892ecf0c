package sock

import (
	"errors"
	"fmt"
	"net"
)

// Wrong usage: the caller has to change what it asked for.
var (
	// ErrPath: the socket path is empty, holds a NUL, names a directory, or is
	// longer than the 107 bytes that fit a Unix address.
	ErrPath = errors.New("malformed socket path")

	// ErrTooLong: a record for Send is longer than MaxRecord.
	ErrTooLong = errors.New("record too long")
)

// Trouble with the place of the socket.
var (
	// ErrNoDirectory: the directory that should hold the socket is not there.
	ErrNoDirectory = errors.New("no such directory")

	// ErrInsecure: the directory belongs to another user, or group or others
	// may write to it, so that somebody else could replace the socket.
	ErrInsecure = errors.New("directory is not safe for a socket")

	// ErrNotSocket: what is there is not what it should be: a symbolic link, a
	// file, a directory, or a socket of another type.
	ErrNotSocket = errors.New("not a SOCK_SEQPACKET socket")

	// ErrInUse: another listener lives at this path.
	ErrInUse = errors.New("another process is listening there")

	// ErrNoListener: nobody listens at this path.
	ErrNoListener = errors.New("nobody is listening there")

	// ErrNotListener: what a predecessor handed over is not the listener of the path and
	// its lock, or was withdrawn.
	ErrNotListener = errors.New("no listener to take over")

	// ErrRefused: the peer is not one that the Policy admits. *RefusedError
	// matches it.
	ErrRefused = errors.New("peer refused")
)

// Trouble with a connection.
var (
	// ErrClosed: the Conn or Listener was closed on this side. It matches
	// net.ErrClosed.
	ErrClosed = fmt.Errorf("closed on this side: %w", net.ErrClosed)

	// ErrHandedOver: another process has the listener (HandOver). It matches ErrClosed.
	ErrHandedOver = fmt.Errorf("handed over to another process: %w", ErrClosed)

	// ErrPeerLost: the peer closed the connection or died. A peer that had read
	// everything also gives io.EOF, one that had not gives ECONNRESET.
	ErrPeerLost = errors.New("peer lost")

	// ErrTooManyInFlight: the user has more descriptors in flight, sent and not
	// yet received, than its limit of open files (ETOOMANYREFS), until the
	// context was done.
	ErrTooManyInFlight = errors.New("too many file descriptors in flight")

	// ErrWouldWait: TrySend has sent nothing, because the peer's queue is full,
	// another Send is under way, or too many descriptors are in flight.
	ErrWouldWait = errors.New("sending would have to wait")

	// ErrNoProcess: the kernel gives no descriptor of the peer's process. It is older
	// than Linux 6.5 and the peer is in another PID namespace, or older than 5.3, or a
	// security module forbids it.
	ErrNoProcess = errors.New("no descriptor of the peer's process")

	// ErrUnexpectedRecord: WaitClose got records, and no end of them.
	ErrUnexpectedRecord = errors.New("the peer goes on sending instead of closing")
)

// Trouble with a record ([IsBadRecord]). Its descriptors are closed here.
var (
	// ErrEmptyRecord: a record of length 0, with or without descriptors.
	ErrEmptyRecord = errors.New("record of length 0")

	// ErrTruncated: a record longer than MaxRecord, or than WithMaxRecord allows,
	// arrived (MSG_TRUNC).
	ErrTruncated = errors.New("record cut off")

	// ErrControlTruncated: the kernel could not install all descriptors of the
	// record (MSG_CTRUNC), as a rule because this process is out of them.
	ErrControlTruncated = errors.New("file descriptors were lost")

	// ErrTooManyFDs: a record with more than MaxFDs descriptors, or more than
	// WithMaxFDs allows.
	ErrTooManyFDs = errors.New("too many file descriptors in one record")

	// ErrControl: a control message that is malformed or of a type that this
	// package did not ask for.
	ErrControl = errors.New("unexpected control message")

	// ErrStuck: a bad record with descriptors stays at the head of the queue, and
	// nothing more can be received on this connection: close it. The error that each
	// Receive and WaitClose returns from then on says what is wrong with the record,
	// too. Sending and [Conn.WaitHangup] still work.
	ErrStuck = errors.New("nothing more can be received: close the connection")
)

// Error is what every operation of this package returns, but for a refused
// peer. Unwrap leads to the sentinel, the kernel's answer (a syscall.Errno) and
// the context's error, as far as there are any.
type Error struct {
	Op    string // "listen", "accept", "dial", "send", "receive", ...
	Where string // the socket's path, or the peer
	Err   error
}

// Error says what was tried, where, and what came of it.
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

// RefusedError says which peer was turned away and why. It matches ErrRefused.
type RefusedError struct {
	Peer   Peer
	Reason string
}

// Error names the peer and the reason.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("sock: peer refused (%v): %s", e.Peer, e.Reason)
}

// Is reports whether target is ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }
