// Package sock passes bytes and file descriptors between the processes of one
// machine, over Unix sockets of type SOCK_SEQPACKET (unix(7)).
//
// A record arrives whole, with its file descriptors, or not at all. Each
// descriptor that the kernel hands to this process is accounted for: it is in
// the Record that Receive returned, or it is closed. The package knows nothing
// of what the bytes mean; package share does.
//
//	l, err := sock.Listen("/run/user/1000/app/socket")  // a 0700 directory of yours
//	c, err := l.Accept(ctx)                              // same user only, unless WithPolicy
//	err = c.Send(ctx, []byte("hello"), file)             // file stays yours
//
//	c, err := sock.Dial(ctx, "/run/user/1000/app/socket")
//	rec, err := c.Receive(ctx)
//	defer rec.Close()                                    // what Take did not take
//
// # Who should not use it
//
// Whoever needs a byte stream, more than 64 KiB in one piece, a peer on
// another machine, or a system other than Linux.
//
// # Another process at the same path
//
// [Listener.HandOver] and [TakeOver] give a Listener to a successor, over a connection
// between the two: a socket of their own that the predecessor listens at, or a pair of
// which a child inherits one end ([Conn.File], [FromFile]). Nobody who connects meanwhile
// is refused.
//
// # What bites
//
//   - Who sends last waits for the other's close (WaitClose). A process that
//     closes a socket with unread records in it takes them away from nobody but
//     itself, yet the other side then sees a reset instead of an end.
//   - A descriptor that was sent is out of the sender's hands: the receiver
//     keeps what it stands for until it closes it.
//   - Out of descriptors, a receiver gets ErrControlTruncated, and the connection
//     can only be closed (ErrStuck): close some and connect again.
//   - To close what a peer sent may take as long as the peer likes: a TCP socket
//     with SO_LINGER does. Close files with CloseFiles, which waits one second at
//     most, or DropFiles, which does not wait.
//   - The peer's uid is what Policy goes by. The pid is information only; it is
//     0 for a peer in another PID namespace.
//   - The end of a connection is not the end of the peer's process, nor the other way
//     round: a process that was forked may have the connection, too. Conn.Process
//     waits for the process itself.
//   - Only the directory that holds the socket is checked, not its parents.
//
// # Contexts
//
// Every call that may block takes a context. When it is done, the call returns
// an error that matches ctx.Err() and context.Cause(ctx). A call that had
// succeeded by then returns its result. Any number of goroutines may use a Conn
// or a Listener at the same time: sends take turns, so do receives, and the two
// directions do not hinder each other.
//
// # Errors
//
// Every error is an *Error or a *RefusedError, and matches one of the sentinels
// where there is something to tell apart. ErrPath is wrong usage, and so are
// the ErrEmptyRecord, ErrTooLong and ErrTooManyFDs that Send returns; everything
// else is a failure of the machine, the other side or the time allowed.
package sock
