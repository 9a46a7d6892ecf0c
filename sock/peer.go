package sock

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Peer is the process on the other end of a connection, as the kernel noted it
// when the connection was made (SO_PEERCRED, unix(7)): the effective ids of the
// process that connected, or of the one that listened. Decide by UID; PID is
// information only, and 0 for a process in another PID namespace.
type Peer struct {
	UID, GID uint32
	PID      int32
}

// String returns the peer's ids for messages: "pid 7 uid 1000 gid 1000".
func (p Peer) String() string {
	pid := "unknown"
	if p.PID > 0 {
		pid = strconv.Itoa(int(p.PID))
	}
	return fmt.Sprintf("pid %s uid %d gid %d", pid, p.UID, p.GID)
}

func peerOf(fd int) (Peer, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return Peer{}, os.NewSyscallError("getsockopt", err)
	}
	return Peer{UID: cred.Uid, GID: cred.Gid, PID: cred.Pid}, nil
}

// Policy says which peers are admitted. The zero value admits those with this
// process's effective uid and nobody else, not even root; UIDs and GIDs add to
// that. GIDs are compared with the peer's effective gid, not with its
// supplementary groups.
//
// The overflow ids (usually 65534) stand for every user or group that this process's
// user namespace does not map. They are refused even if listed, unless the
// namespace maps every id to itself (user_namespaces(7)).
type Policy struct {
	UIDs, GIDs []uint32
}

// Check returns nil if p admits peer, else a *NotAdmittedError. A Listener checks the
// peers that it accepts; a caller of Dial may check Conn.Peer.
func (p Policy) Check(peer Peer) error {
	return p.check(peer, uint32(os.Geteuid()), thisNamespace())
}

func (p Policy) check(peer Peer, self uint32, ns namespace) error {
	if ns.uid.hides(peer.UID) {
		return &NotAdmittedError{peer, fmt.Sprintf("uid %d stands for every user unknown in this user namespace", peer.UID)}
	}
	if peer.UID == self || slices.Contains(p.UIDs, peer.UID) {
		return nil
	}
	if slices.Contains(p.GIDs, peer.GID) && !ns.gid.hides(peer.GID) {
		return nil
	}
	return &NotAdmittedError{peer, fmt.Sprintf("it is not user %d, which this process runs as, nor on the list of users and groups allowed", self)}
}

// idMap is what a user namespace does to one kind of id.
type idMap struct {
	overflow uint32
	identity bool // every id is mapped, to itself
}

// hides reports whether id may stand for a user or group that is not mapped here.
func (m idMap) hides(id uint32) bool { return !m.identity && id == m.overflow }

type namespace struct{ uid, gid idMap }

// thisNamespace is read once: a Go process cannot change its user namespace,
// having threads, and reading it again could fail for want of a descriptor.
var thisNamespace = sync.OnceValue(func() namespace {
	return namespace{uid: readIDMap("uid"), gid: readIDMap("gid")}
})

// readIDMap assumes the stricter case for what it cannot read.
func readIDMap(kind string) idMap {
	m := idMap{overflow: 65534}
	if data, err := os.ReadFile("/proc/sys/kernel/overflow" + kind); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 32); err == nil {
			m.overflow = uint32(n)
		}
	}
	data, err := os.ReadFile("/proc/self/" + kind + "_map")
	m.identity = err == nil && isIdentity(string(data))
	return m
}

// isIdentity recognises the map of the initial user namespace.
func isIdentity(idMap string) bool {
	return slices.Equal(strings.Fields(idMap), []string{"0", "0", "4294967295"})
}
