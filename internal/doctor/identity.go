package doctor

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
)

// An identity is what the kernel knows of a process that matters for sharing.
type identity struct {
	PID        int    // in its own PID namespace
	UID        uint32 // as this process sees it
	Namespaces map[string]string
	UIDMap     string
	Shm        string // the file system and directory at its /dev/shm
	Kind       cu.Kind
	Devices    []cu.UUID
}

// A hello is what [Offer] says of itself, with the legacy handles of its memory.
type hello struct {
	identity
	Salt   uint32
	Memory *cu.IPCHandle
	Event  *cu.IPCEventHandle
	Device cu.UUID
}

// identityOf reads what /proc says of a process: a number, or "self".
func identityOf(pid string) (id identity, err error) {
	dir := filepath.Join("/proc", pid)
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return id, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	id.UID, id.Namespaces = st.Uid, map[string]string{}
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return id, err
	}
	id.PID = innermostPID(status)
	for _, kind := range []string{"pid", "user", "net"} {
		link, err := os.Readlink(filepath.Join(dir, "ns", kind))
		if err != nil {
			return id, fmt.Errorf("%w; run as its user, with permission to trace it", err)
		}
		id.Namespaces[kind] = link
	}
	uidMap, _ := os.ReadFile(filepath.Join(dir, "uid_map"))
	id.UIDMap = strings.Join(strings.Fields(string(uidMap)), " ")
	id.Shm, _ = shmOf(pid) // "" where it has none
	return id, nil
}

// identityOfPeer reads what /proc says of the process that listens at the other end.
func identityOfPeer(conn *sock.Conn) (identity, error) {
	pid := conn.Peer().PID
	if pid == 0 {
		return identity{}, errors.New("the process has no number in this PID namespace")
	}
	p, err := conn.Process()
	if err != nil {
		return identity{}, err
	}
	id, err := identityOf(strconv.Itoa(int(pid)))
	if p.Died() { // another process may have its number
		err = fmt.Errorf("process %d, which made the socket, has ended; another process listens there now", pid)
	}
	return id, errors.Join(err, p.Close())
}

// innermostPID returns the process's number in its own PID namespace.
func innermostPID(status []byte) int {
	for line := range bytes.Lines(status) {
		if rest, ok := bytes.CutPrefix(line, []byte("NSpid:")); ok {
			all := strings.Fields(string(rest))
			n, _ := strconv.Atoi(all[len(all)-1])
			return n
		}
	}
	return 0
}

// shmOf identifies the /dev/shm of a process: two processes that share it have the same.
func shmOf(pid string) (string, error) {
	path := filepath.Join("/proc", pid, "root/dev/shm")
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	return fmt.Sprintf("%d:%d", st.Dev, st.Ino), nil
}

// compare compares two processes in what matters for sharing, except the devices. admitted
// are other users that are trusted.
func compare(me, other identity, admitted []uint32) []Row {
	rows := []Row{comparePIDs(me, other), compareUIDs(me, other, admitted), compareShm(me, other), compareNet(me, other)}
	for i := range rows {
		rows[i].Peer = true
	}
	return rows
}

func comparePIDs(me, other identity) Row {
	same := me.Namespaces["pid"] == other.Namespaces["pid"]
	switch {
	case me.PID == 0 || other.PID == 0:
		return row("pid-equal", Unknown, "", "the kernel does not tell their pids")
	case same && me.PID == other.PID:
		return row("pid-equal", Warn, "own-handle", "both are the same process, %d", me.PID)
	case same:
		return row("pid-equal", OK, "", "%d and %d, in one PID namespace", me.PID, other.PID)
	case me.PID == other.PID:
		return row("pid-equal", Warn, "", "both are process %d, each in a PID namespace of its own", me.PID)
	}
	return row("pid-equal", OK, "", "%d and %d, each in a PID namespace of its own", me.PID, other.PID)
}

func compareUIDs(me, other identity, admitted []uint32) Row {
	switch {
	case other.UID == overflowUID() && !isIdentityMap(me.UIDMap):
		return row("uid-common", Fail, "", "it belongs to a user unknown in this user namespace (uid %d)", other.UID)
	case me.UIDMap != other.UIDMap:
		return row("uid-common", Warn, "", "the user namespaces map users differently: %q here, %q there", me.UIDMap, other.UIDMap)
	case me.UID != other.UID && slices.Contains(admitted, other.UID):
		return row("uid-common", OK, "", "they are uid %d and uid %d, which is admitted", me.UID, other.UID)
	case me.UID != other.UID:
		return row("uid-common", Warn, "", "they are uid %d and uid %d", me.UID, other.UID)
	}
	return row("uid-common", OK, "", "both are uid %d", me.UID)
}

func compareShm(me, other identity) Row {
	switch {
	case me.Shm == "" || other.Shm == "":
		return row("shm-common", Warn, "", "one of them has no readable /dev/shm")
	case me.Shm != other.Shm:
		return row("shm-common", Warn, "", "each has a /dev/shm of its own")
	}
	return row("shm-common", OK, "", "both have the same /dev/shm")
}

func compareNet(me, other identity) Row {
	if me.Namespaces["net"] != other.Namespaces["net"] {
		return row("net-common", Unknown, "", "each has a network namespace of its own, so abstract sockets do not connect them")
	}
	return row("net-common", OK, "", "both are in one network namespace")
}

// compareDevices compares the devices that the two sides see.
func compareDevices(me, other []cu.UUID) Row {
	var both, mine, theirs []string
	for _, u := range me {
		if slices.Contains(other, u) {
			both = append(both, u.String())
		} else {
			mine = append(mine, u.String())
		}
	}
	for _, u := range other {
		if !slices.Contains(me, u) {
			theirs = append(theirs, u.String())
		}
	}
	r := row("devices-common", OK, "", "both see %s", strings.Join(both, ", "))
	switch {
	case len(both) == 0:
		r = row("devices-common", Fail, "", "they have no device in common: %s here, %s there", list(mine), list(theirs))
	case len(mine)+len(theirs) > 0:
		r = row("devices-common", Warn, "", "in common %s; only here %s; only there %s", list(both), list(mine), list(theirs))
	}
	r.Peer = true
	return r
}

func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// overflowUID returns the uid that stands for users that are not mapped here.
func overflowUID() uint32 {
	b, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	n, perr := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32)
	if err != nil || perr != nil {
		return 65534
	}
	return uint32(n)
}

func isIdentityMap(m string) bool { return m == "0 0 4294967295" }
