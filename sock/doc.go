// Package sock passes bytes and file descriptors between the processes of one
// machine, over Unix sockets of type SOCK_SEQPACKET (unix(7)).
//
// A record arrives whole, with its file descriptors, or not at all. The package
// accounts for every descriptor that the kernel hands to this process: it is in
// the Record that Receive returned, or it is closed. The package does not know
// what the bytes mean.
//
//	l, err := sock.Listen("/run/user/1000/app/socket")  // a 0700 directory of yours
//	c, err := l.Accept(ctx)                              // same user only, unless WithPolicy
//	err = c.Send(ctx, []byte("hello"), file)             // file stays yours
//
//	c, err := sock.Dial(ctx, "/run/user/1000/app/socket")
//	rec, err := c.Receive(ctx)
//	defer rec.Close()                                    // what Take did not take
//
// # When not to use it
//
// Use something else for a byte stream, for more than 64 KiB in one piece, for
// a peer on another machine, or on a system other than Linux.
//
// # Another process at the same path
//
// [Listener.HandOver] and [TakeOver] pass a Listener to a successor, over a connection
// between the two. That is a second socket at which the predecessor listens, or a pair
// whose other end a child inherits ([Conn.File], [FromFile]). No client is refused meanwhile.
//
// # What bites
//
//   - The side that sends last should wait for the other to close (WaitClose). If a
//     process closes a socket with unread records, its peer sees a reset instead of
//     an end.
//   - A sender cannot take a descriptor back: the receiver keeps the file open
//     until it closes its copy.
//   - A receiver that runs out of descriptors gets ErrControlTruncated, and the
//     connection can only be closed (ErrStuck). Close some files and connect again.
//   - Closing a descriptor that a peer sent may take as long as the peer likes: a TCP
//     socket with SO_LINGER does. Use CloseFiles, which waits one second at most, or
//     DropFiles, which does not wait.
//   - Policy decides by the peer's uid. The pid is information only; it is 0 for a
//     peer in another PID namespace.
//   - A connection may outlive the peer's process, and the process its connection: a
//     forked process may hold the connection, too. Conn.Process waits for the process
//     itself.
//   - Only the directory that holds the socket is checked, not its parents.
//
// # Contexts
//
// Every call that may block takes a context. When the context is done, the call
// returns an error that matches ctx.Err() and context.Cause(ctx). A call that had
// succeeded by then returns its result. Any number of goroutines may use a Conn
// or a Listener at the same time. Sends take turns, receives take turns, and
// neither waits for the other.
//
// # Errors
//
// Every error is an *Error or a *NotAdmittedError, and matches a sentinel where a
// caller may want to tell cases apart. ErrPath is wrong usage, and so are
// ErrEmptyRecord, ErrTooLong and ErrTooManyFDs from Send. In every other case the
// machine or the other side failed, or the time ran out.
package sock
