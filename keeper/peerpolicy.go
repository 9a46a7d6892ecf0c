package keeper

import (
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/sock"
)

// policy returns which users may be the keeper: those of protocol.KeeperOf, and those of the caller.
func (w Want) policy(socket string) sock.Policy {
	p := protocol.KeeperOf(socket)
	return sock.Policy{UIDs: append(p.UIDs, w.Peers.UIDs...), GIDs: append(p.GIDs, w.Peers.GIDs...)}
}
