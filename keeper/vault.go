package keeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/made"
	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/sock"
)

// A vault is what the fd store holds, and copies of all of that: the keeper and its store
// each can lose the other. It is used with the server's mu held.
type vault struct {
	path  string
	argv  []string // that start a store
	store *fdstore.Client
	pid   int // of the store
	files map[uint64][]*os.File
}

// openVault finds the store or starts one, and copies what it holds.
func openVault(ctx context.Context, path string, argv []string) (*vault, error) {
	v := &vault{path: path, argv: argv, files: map[uint64][]*os.File{}}
	var err error
	v.store, err = fdstore.Dial(ctx, path)
	if errors.Is(err, sock.ErrNoListener) {
		v.store, err = v.spawn(ctx)
	}
	if err != nil {
		return nil, err
	}
	if err := v.load(ctx); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

func (v *vault) spawn(ctx context.Context) (*fdstore.Client, error) {
	if len(v.argv) == 0 {
		return nil, fmt.Errorf("keeper: there is no fd store at %s, and none is to be started: %w", v.path, sock.ErrNoListener)
	}
	return fdstore.Spawn(ctx, v.path, append(slices.Clip(v.argv), v.path)...)
}

func (v *vault) load(ctx context.Context) error {
	held, err := v.store.List(ctx)
	if err != nil {
		return err
	}
	for id := range held {
		if v.files[id], err = v.store.Fetch(ctx, id); err != nil {
			return err
		}
	}
	return v.learn(ctx)
}

func (v *vault) learn(ctx context.Context) error {
	st, err := v.store.Status(ctx)
	v.pid = st.PID
	return err
}

// hold has the store hold files under an id. They stay the caller's.
func (v *vault) hold(ctx context.Context, id uint64, files []*os.File) error {
	own, err := duplicates(files)
	if err != nil {
		return err
	}
	if err := v.store.Hold(ctx, id, files); err != nil {
		return errors.Join(v.failed(err), sock.CloseFiles(own))
	}
	v.files[id] = own
	return nil
}

// drop gives files up that the store may hold.
func (v *vault) drop(ctx context.Context, ids ...uint64) error {
	var known []uint64
	for _, id := range ids {
		if files, ok := v.files[id]; ok {
			sock.DropFiles(files)
			delete(v.files, id)
			known = append(known, id)
		}
	}
	if len(known) == 0 {
		return nil
	}
	return v.store.Drop(ctx, known...)
}

// fetch returns copies of what is held under an id, which the caller owns.
func (v *vault) fetch(id uint64) ([]*os.File, error) {
	files, ok := v.files[id]
	if !ok {
		return nil, fmt.Errorf("keeper: the fd store has nothing under %d", id)
	}
	return duplicates(files)
}

// swap makes manifest what a keeper that follows finds.
func (v *vault) swap(ctx context.Context, manifest []byte) error {
	return v.failed(v.store.Swap(ctx, manifest))
}

// failed says what it means that the store did not take a change.
func (v *vault) failed(err error) error {
	if err == nil {
		return nil
	}
	if v.lost() {
		return &Error{Code: "store-lost", Message: "the fd store has died, and nothing was changed: try again when the keeper has given another one what it holds: " + err.Error()}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the fd store did not say whether it has taken a change: %w", err)
	}
	return &Error{Code: "store", Message: "the fd store did not take the change, and nothing was changed: " + err.Error()}
}

// lost says whether the store has died.
func (v *vault) lost() bool {
	select {
	case <-v.store.Done():
		return true
	default:
		return false
	}
}

// refill starts another store, in the place of one that has died, and gives it everything.
func (v *vault) refill(ctx context.Context, manifest []byte) error {
	store, err := v.spawn(ctx)
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(v.files)) {
		if err = store.Hold(ctx, id, v.files[id]); err != nil {
			break
		}
	}
	if err == nil {
		err = store.Swap(ctx, manifest)
	}
	if err != nil {
		return errors.Join(err, store.Exit(ctx), store.Close())
	}
	_ = v.store.Close()
	v.store = store
	return v.learn(ctx)
}

// Close gives up the copies; what the store holds stays.
func (v *vault) Close() error {
	for _, files := range v.files {
		sock.DropFiles(files)
	}
	v.files = nil
	return v.store.Close()
}

// duplicates are copies of descriptors, which the caller owns (dup(2)).
func duplicates(files []*os.File) (own []*os.File, err error) {
	for _, f := range files {
		conn, cerr := f.SyscallConn()
		if err = cerr; err != nil {
			break
		}
		cerr = conn.Control(func(fd uintptr) {
			var dup int
			if dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				own = append(own, made.File(dup, f.Name()))
			}
		})
		if err = errors.Join(err, cerr); err != nil {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, sock.CloseFiles(own))
	}
	return own, nil
}

// replaceStore gives another fd store all that this keeper holds, when its own has died,
// and says loudly what it would mean to end before.
func (s *Server) replaceStore() {
	s.log("the fd store has died: until another one has everything, the end of this keeper would lose what is kept")
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
	defer cancel()
	s.mu.Lock()
	err := s.vault.refill(ctx, s.state.Encode())
	pid := s.vault.pid
	s.mu.Unlock()
	if err == nil {
		s.log("another fd store, process %d, holds everything", pid)
		return
	}
	s.log("giving another fd store everything: %v; what is kept is lost if this keeper ends", err)
	select {
	case <-s.ctx.Done():
	case <-time.After(time.Second):
	}
}
