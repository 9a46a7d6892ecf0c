package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/fdstore"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/sock"
)

// A vault is a connection to the fd store, and copies of all that the store holds: the keeper and
// its store each can lose the other. One change at a time uses it ([Server.begin]).
type vault struct {
	path  string
	argv  []string // the command that starts a store
	files map[uint64][]*os.File

	spawned bool // this vault started the store, as there was none

	mu    sync.Mutex // guards what is read outside changes, too
	store *fdstore.Client
	is    fdstore.Status // what the store is
}

// client returns the connection to the store.
func (v *vault) client() *fdstore.Client {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.store
}

// pid returns the store's pid.
func (v *vault) pid() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.is.PID
}

// openVault finds the store, or starts one or waits for one, and copies what it holds.
func openVault(ctx context.Context, path string, argv []string) (*vault, error) {
	v := &vault{path: path, argv: argv, files: map[uint64][]*os.File{}}
	var err error
	if v.store, v.spawned, err = v.find(ctx, func() {}); err != nil {
		return nil, err
	}
	if err := v.load(ctx); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// storePause is how long find waits before it looks for a store again.
const storePause = 20 * time.Millisecond

// find returns the running store, or one that it starts, and whether it started one. Without a
// command it waits for a store until ctx is done. If there is no store it calls none first.
func (v *vault) find(ctx context.Context, none func()) (store *fdstore.Client, spawned bool, err error) {
	for first := true; ; first = false {
		store, err := fdstore.Dial(ctx, v.path)
		waited := !first && ctx.Err() != nil // also if that ended the dial
		if err == nil || !waited && !errors.Is(err, sock.ErrNoListener) {
			return store, false, err
		}
		if first {
			none()
		}
		if len(v.argv) > 0 {
			store, err := fdstore.Spawn(ctx, v.path, append(slices.Clip(v.argv), v.path)...)
			return store, err == nil, err
		}
		select {
		case <-ctx.Done():
			return nil, false, fmt.Errorf("keeper: waiting for an fd store: %w: %v; start one there: gpufd fd-store %s", context.Cause(ctx), err, v.path)
		case <-time.After(storePause):
		}
	}
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
	v.is, err = v.store.Status(ctx)
	return err
}

// hold makes the store hold files under an id. The caller keeps its files.
func (v *vault) hold(ctx context.Context, id uint64, files []*os.File) error {
	own, err := duplicates(files)
	if err != nil {
		return err
	}
	if err := v.store.Hold(ctx, id, own); err != nil { // the caller may have closed its own by now
		return errors.Join(v.failed(err), sock.CloseFiles(own))
	}
	v.files[id] = own
	return nil
}

// drop drops sets that the store may hold, and closes the copies.
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

// swap makes manifest the one that the next keeper finds.
func (v *vault) swap(ctx context.Context, manifest []byte) error {
	return v.failed(v.store.Swap(ctx, manifest))
}

// failed explains an error of a store that did not take a change.
func (v *vault) failed(err error) error {
	if err == nil {
		return nil
	}
	if v.lost() {
		return &state.Error{Code: api.StoreLost, Message: "the fd store is lost, and nothing was changed: try again when the keeper has found it again, or has given another one what it holds: " + err.Error()}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the fd store did not say whether it has taken a change: %w", err)
	}
	return &state.Error{Code: "store", Message: "the fd store did not take the change, and nothing was changed: " + err.Error()}
}

// lost reports whether the store has died, or the connection to it.
func (v *vault) lost() bool {
	select {
	case <-v.client().Done():
		return true
	default:
		return false
	}
}

// refill gives a store everything that it lacks, in place of a store that has died or whose
// connection is lost. spawned means that this vault has started it.
func (v *vault) refill(ctx context.Context, store *fdstore.Client, spawned bool, manifest []byte) error {
	is, err := store.Status(ctx)
	if err == nil {
		err = v.fill(ctx, store, is, manifest)
	}
	if err != nil {
		return errors.Join(err, leave(ctx, store, spawned))
	}
	_ = v.store.Close()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.store, v.is = store, is
	return nil
}

// leave abandons a store that has not become this vault's. It ends one that was started for the
// vault: the next keeper would find it empty.
func leave(ctx context.Context, store *fdstore.Client, spawned bool) error {
	var err error
	if spawned {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		err = store.Exit(ctx)
	}
	return errors.Join(err, store.Close())
}

// fill makes a store hold everything that this vault has, and nothing else.
func (v *vault) fill(ctx context.Context, store *fdstore.Client, is fdstore.Status, manifest []byte) error {
	held, err := v.remains(ctx, store, is)
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(v.files)) {
		if _, ok := held[id]; ok {
			continue
		}
		if err := store.Hold(ctx, id, v.files[id]); err != nil {
			return err
		}
	}
	return store.Swap(ctx, manifest)
}

// remains drops from a store what is not this vault's, and returns what is. In the store that
// the vault had before, the ids are the same. Another store is used only if nobody needs it: it
// has no manifest.
func (v *vault) remains(ctx context.Context, store *fdstore.Client, st fdstore.Status) (map[uint64]int, error) {
	if !st.Same(v.is) && st.Manifest >= 0 {
		return nil, fmt.Errorf("keeper: the fd store at %s, process %d, holds what another keeper has put there: end that process, and this keeper takes another store", v.path, st.PID)
	}
	held, err := store.List(ctx)
	if err != nil {
		return nil, err
	}
	var others []uint64
	for id, n := range held {
		if !st.Same(v.is) || n != len(v.files[id]) {
			others = append(others, id)
			delete(held, id)
		}
	}
	return held, store.Drop(ctx, others...)
}

// Close gives up the copies; what the store holds stays.
func (v *vault) Close() error {
	v.mu.Lock() // it may be closed twice at the same time
	defer v.mu.Unlock()
	for _, files := range v.files {
		sock.DropFiles(files)
	}
	v.files = nil
	return v.store.Close()
}

// duplicates returns copies of descriptors, which the caller owns (dup(2)).
func duplicates(files []*os.File) (own []*os.File, err error) {
	for _, f := range files {
		conn, cerr := f.SyscallConn()
		if err = cerr; err != nil {
			break
		}
		cerr = conn.Control(func(fd uintptr) {
			var dup int
			if dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0); err == nil {
				own = append(own, fdtrace.File(dup, f.Name()))
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

// replaceStore gives an fd store all that this keeper holds, when its own is lost. It logs what
// would be lost if the keeper ended before.
func (s *Server) replaceStore() {
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
	defer cancel()
	store, spawned, err := s.vault.find(ctx, func() { // changes fail meanwhile, and do not wait
		s.complain("the fd store has died: until another one has everything, the end of this keeper would lose what is kept")
	})
	before := s.vault.is
	if err == nil {
		err = s.refill(ctx, store, spawned)
	}
	switch {
	case err == nil && s.vault.is.Same(before):
		s.complained = ""
		s.log("the connection to the fd store was lost, and is there again")
	case err == nil:
		s.complained = ""
		s.log("another fd store, process %d, holds everything", s.vault.is.PID)
	default:
		s.complain(fmt.Sprintf("giving another fd store everything: %v; what is kept may be lost if this keeper ends", err))
		select {
		case <-s.ctx.Done():
		case <-time.After(outagePause):
		}
	}
}

// refill gives a store everything, as a change of its own.
func (s *Server) refill(ctx context.Context, store *fdstore.Client, spawned bool) error {
	if err := s.begin(ctx); err != nil {
		return errors.Join(err, leave(ctx, store, spawned))
	}
	defer s.finish()
	return s.vault.refill(ctx, store, spawned, s.state.Encode())
}

// outagePause is how long the keeper waits before it tries again what needs the fd store.
const outagePause = time.Second

// complain logs a lasting condition once.
func (s *Server) complain(line string) {
	if line != s.complained {
		s.complained = line
		s.log("%s", line)
	}
}
