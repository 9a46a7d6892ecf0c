package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// ReadPolicy reads a policy from a file of JSON, whose form is in docs/keeper.md.
func ReadPolicy(path string) (api.Policy, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return api.Policy{}, err
	}
	p, err := state.ParsePolicy(text, uint32(os.Geteuid()))
	if err != nil {
		return api.Policy{}, fmt.Errorf("%s: %w", path, err)
	}
	return api.Policy(p), nil
}

// Options configure a keeper. Socket is required.
type Options struct {
	Socket     string        // where readers connect; that of writers and the fd store's lie beside it. Its directory is made, 0750, if it is missing
	Store      []string      // the command that starts an fd store if there is none, with its path appended; without it, the keeper waits for a store
	Policy     api.Policy    // without rules it admits this user alone
	Mode       os.FileMode   // of the sockets; if 0, 0600, or 0666 where the policy names others
	Peers      sock.Policy   // may connect beside those that the policy names
	Ticket     time.Duration // the most that a writer may take between booking and delivering, an hour if 0
	Grace      time.Duration // how long after a restart retired versions wait for their readers, a minute if 0
	Timeout    time.Duration // for a step of a conversation, 30 seconds if 0
	Metrics    string        // the address of an HTTP server of metrics, or ""
	Version    string        // of the program, for status
	Mover      []string      // the command that moves memory: it calls keeper.RunMover; without it nothing can be parked
	Pool       uint64        // bytes of memory of the host for parking, which the keeper makes when it starts; what an earlier keeper made stays as far as that goes, or something is parked there
	PoolDriver string        // of that memory: cuda, soft, or auto if ""
	Log        func(string)  // told what an operator should know, or nil
}

// storeSuffix follows the path of the keeper's socket in that of the fd store's.
const storeSuffix = ".store"

func (o *Options) check() error {
	if o.Socket == "" {
		return errors.New("keeper: no socket to listen at")
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&o.Ticket, time.Hour}, {&o.Grace, time.Minute}, {&o.Timeout, 30 * time.Second}} {
		if *d.value < 0 {
			return fmt.Errorf("keeper: a time of %s", *d.value)
		}
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if o.PoolDriver == "" {
		o.PoolDriver = "auto"
	}
	o.Policy.Owner = uint32(os.Geteuid())
	if err := state.Policy(o.Policy).Check(); err != nil {
		return err
	}
	o.admit()
	return nil
}

// admit lets the users and groups that the policy names connect.
func (o *Options) admit() {
	for _, r := range o.Policy.Rules {
		switch {
		case r.UID != nil:
			o.Peers.UIDs = append(o.Peers.UIDs, *r.UID)
		case r.GID != nil:
			o.Peers.GIDs = append(o.Peers.GIDs, *r.GID)
		}
	}
	if o.Mode == 0 {
		o.Mode = 0o600
		if len(o.Peers.UIDs)+len(o.Peers.GIDs) > 0 {
			o.Mode = 0o666 // the policy tells them apart
		}
	}
}

// tick is how often the keeper looks for what has expired.
func (o *Options) tick() time.Duration {
	return max(min(o.Ticket, o.Grace, 10*time.Second)/10, 50*time.Millisecond)
}

// RunStore is the whole program of an fd store. It holds descriptors for a keeper until it is told
// to end. path is that of the keeper's socket with the suffix .store. The command in
// [Options.Store] calls RunStore as early as it can, before it loads anything else.
//
// When it is told to end, by a signal or by [End], RunStore removes the sockets of a keeper that has ended.
//
// RunStore makes the directory of path, mode 0750, if that alone is missing.
func RunStore(path string) error {
	if err := makeDirectory(path); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	return fdstore.Run(ctx, path, func() {
		if socket, ok := strings.CutSuffix(path, storeSuffix); ok {
			_ = removeSockets(socket) // unless a keeper has them
		}
	})
}

// ErrClosed says that a server has ended by [Server.Close]. It is [gpumem.ErrClosed].
var ErrClosed = gpumem.ErrClosed
