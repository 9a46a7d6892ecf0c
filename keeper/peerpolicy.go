package keeper

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/sock"
)

// policy returns which users may be the keeper: those of keeperOf, and those of the caller.
func (w Want) policy(socket string) sock.Policy {
	p := keeperOf(socket)
	return sock.Policy{UIDs: append(p.UIDs, w.Peers.UIDs...), GIDs: append(p.GIDs, w.Peers.GIDs...)}
}

// keeperOf returns which users may be the keeper at a socket: this process's user, and the owner
// of the socket's directory if nobody else may write there. Another user cannot have made it.
func keeperOf(socket string) sock.Policy {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Dir(socket), &st); err != nil || st.Mode&0o022 != 0 {
		return sock.Policy{}
	}
	if st.Uid == uint32(os.Geteuid()) {
		return sock.Policy{}
	}
	return sock.Policy{UIDs: []uint32{st.Uid}}
}
