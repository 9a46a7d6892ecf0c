package fdstore

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/sock"
)

const (
	// MaxSet is how many descriptors a set has at most.
	MaxSet = 4096

	// MaxManifest is how long a manifest is at most, in bytes.
	MaxManifest = 256 << 20

	// sealed are the seals of a manifest.
	sealed = descriptor.Seals

	// spare is how many descriptors are kept free for one record that is received or
	// sent, and for what the process has open besides: its socket, its keeper, other
	// connections, the poller, and what a refused connection may hold.
	spare = sock.MaxFDs + 36
)

// A store holds sets and a manifest. Descriptors are plain numbers: an os.File for each would be a
// hundred times as large, and one in non-blocking mode, as listening sockets are, would
// wake this process whenever something happens to it. One goroutine at a time uses a
// store.
type store struct {
	sets     map[uint64][]int
	half     half
	manifest int // -1 if there is none
	bytes    int64
	held     int          // descriptors in sets and half
	closing  atomic.Int64 // descriptors that are being closed
	limit    int          // how many this process may have open
	since    time.Time
	identity uint64
}

// half is a set that has come in part. fds is nil while there is none.
type half struct {
	id    uint64
	total int
	fds   []int
}

// answer is the answer to a request. fds remain the store's.
type answer struct {
	header
	body []byte
	fds  []int
}

func newStore(limit int) *store {
	return &store{sets: map[uint64][]int{}, manifest: -1, limit: limit, since: time.Now(), identity: 1 + rand.Uint64N(math.MaxUint64)}
}

// handle does what a request asks for. Its files remain the caller's.
func (s *store) handle(record []byte, files []*os.File) answer {
	h, body, err := parse(record)
	a := answer{header: header{op: h.op, seq: h.seq}}
	if err != nil || h.op != opHold || h.from == 0 {
		s.dropHalf()
	}
	if err == nil {
		err = s.do(&a, h, body, files)
	}
	if err != nil {
		a = refuse(a.header, err)
	}
	a.op |= answerBit
	return a
}

// refuse returns the answer that says err.
func refuse(h header, err error) answer {
	text := err.Error()
	return answer{header: header{op: h.op, seq: h.seq, code: codeOf(err)}, body: []byte(text[:min(len(text), 1024)])}
}

func (s *store) do(a *answer, h header, body []byte, files []*os.File) error {
	if len(files) > 0 && h.op != opHold && h.op != opSwap {
		return fmt.Errorf("%w: %d descriptors with operation %d", ErrMalformed, len(files), h.op)
	}
	switch h.op {
	case opStatus:
		a.id, a.body = s.identity, s.status().append(nil)
		return nil
	case opHold:
		return s.hold(h, files)
	case opSwap:
		return s.swap(files)
	case opDrop:
		return s.drop(h, body)
	case opList:
		s.list(a, h.id)
		return nil
	case opFetch:
		return s.fetch(a, h)
	case opManifest:
		if s.manifest >= 0 {
			a.count, a.fds = 1, []int{s.manifest}
		}
		return nil
	case opExit: // done by the caller of handle
		return nil
	}
	return fmt.Errorf("%w: operation %d", ErrMalformed, h.op)
}

func (s *store) status() Status {
	return Status{PID: os.Getpid(), Sets: len(s.sets), Descriptors: s.held, Room: s.room(),
		Manifest: s.size(), Since: s.since}
}

func (s *store) size() int64 {
	if s.manifest < 0 {
		return -1
	}
	return s.bytes
}

// room returns how many more descriptors may be held.
func (s *store) room() int { return max(0, s.limit-spare-s.held-int(s.closing.Load())) }

// hold takes one part of a set.
func (s *store) hold(h header, files []*os.File) error {
	err := s.expect(h, len(files))
	if err == nil {
		err = s.take(files)
	}
	if err != nil {
		s.dropHalf()
		return err
	}
	if len(s.half.fds) == s.half.total {
		s.sets[s.half.id], s.half = s.half.fds, half{}
	}
	return nil
}

// expect returns nil if a part with n descriptors may come now; the first one begins a set.
func (s *store) expect(h header, n int) error {
	switch {
	case h.count == 0 || h.count > MaxSet || n == 0 || uint64(h.from)+uint64(n) > uint64(h.count):
		return fmt.Errorf("%w: %d descriptors from index %d of a set of %d", ErrMalformed, n, h.from, h.count)
	case h.from > 0:
		if b := s.half; b.fds == nil || b.id != h.id || b.total != int(h.count) || len(b.fds) != int(h.from) {
			return fmt.Errorf("%w: index %d of %d of set %d, after %d of %d of set %d", ErrOrder,
				h.from, h.count, h.id, len(b.fds), b.total, b.id)
		}
		return nil
	}
	if _, held := s.sets[h.id]; held {
		return fmt.Errorf("%w: %d", ErrHeld, h.id)
	}
	if total := int(h.count); total > s.room() {
		return s.full(fmt.Sprintf("a set of %d", total))
	}
	s.half = half{h.id, int(h.count), make([]int, 0, h.count)}
	return nil
}

func (s *store) full(what string) error {
	return fmt.Errorf("%w: no room for %s: it may have %d open (ulimit -n), holds %d, is closing %d and keeps %d free",
		ErrFull, what, s.limit, s.held, s.closing.Load(), spare)
}

// take duplicates files into the half set.
func (s *store) take(files []*os.File) error {
	for _, f := range files {
		fd, err := duplicate(f)
		if err != nil {
			return s.full(fmt.Sprintf("another descriptor (%v)", err))
		}
		s.half.fds = append(s.half.fds, fd)
		s.held++
	}
	return nil
}

// duplicate returns a descriptor that the caller owns. Fd changes no file that Receive
// made, because os.NewFile did.
func duplicate(f *os.File) (int, error) {
	defer runtime.KeepAlive(f)
	return duplicateFD(int(f.Fd()))
}

// duplicateFD leaves 0 to 2 alone, where the standard streams may have been closed
// (fcntl(2), F_DUPFD_CLOEXEC).
func duplicateFD(fd int) (int, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	return fd, os.NewSyscallError("fcntl", err)
}

func (s *store) dropHalf() {
	fds := s.half.fds
	s.half = half{}
	s.held -= len(fds)
	s.letGo(fds)
}

// swap makes a sealed memfd the manifest.
func (s *store) swap(files []*os.File) error {
	if len(files) != 1 {
		return fmt.Errorf("%w: %d descriptors instead of one", ErrManifest, len(files))
	}
	size, err := checkManifest(int(files[0].Fd()))
	runtime.KeepAlive(files[0])
	if err != nil {
		return err
	}
	fd, err := duplicate(files[0])
	if err != nil {
		return s.full(fmt.Sprintf("a manifest (%v)", err))
	}
	if s.manifest >= 0 {
		s.letGo([]int{s.manifest})
	}
	s.manifest, s.bytes = fd, size
	return nil
}

// checkManifest returns the size of a manifest.
func checkManifest(fd int) (int64, error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return 0, fmt.Errorf("%w: it has no seals: %w", ErrManifest, os.NewSyscallError("fcntl", err))
	}
	if seals&sealed != sealed {
		return 0, fmt.Errorf("%w: its seals are %#x, and %#x is missing", ErrManifest, seals, sealed&^seals)
	}
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrManifest, os.NewSyscallError("fstat", err))
	}
	if stat.Size > MaxManifest {
		return 0, fmt.Errorf("%w: it has %d bytes, at most %d are taken", ErrManifest, stat.Size, MaxManifest)
	}
	return stat.Size, nil
}

// drop closes sets, all or none.
func (s *store) drop(h header, body []byte) error {
	ids, err := parseIDs(h, body)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if _, held := s.sets[id]; !held {
			return fmt.Errorf("%w: %d", ErrUnknown, id)
		}
	}
	var fds []int
	for _, id := range ids {
		fds = append(fds, s.sets[id]...)
		delete(s.sets, id)
	}
	s.held -= len(fds)
	s.letGo(fds)
	return nil
}

// letGo closes descriptors in a goroutine that nobody waits for.
func (s *store) letGo(fds []int) {
	if len(fds) == 0 {
		return
	}
	s.closing.Add(int64(len(fds)))
	gone := sock.DropFiles(asFiles(fds))
	go func() {
		<-gone
		s.closing.Add(-int64(len(fds)))
	}()
}

// asFiles makes descriptors the property of files.
func asFiles(fds []int) []*os.File {
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = os.NewFile(uintptr(fd), "held")
	}
	return files
}

func (s *store) list(a *answer, first uint64) {
	ids := slices.Sorted(maps.Keys(s.sets))
	i, _ := slices.BinarySearch(ids, first)
	ids = ids[i:]
	a.count = uint32(len(ids))
	for _, id := range ids[:min(len(ids), maxIDs)] {
		a.body = appendEntry(a.body, id, len(s.sets[id]))
	}
}

func (s *store) fetch(a *answer, h header) error {
	fds, held := s.sets[h.id]
	switch {
	case !held:
		return fmt.Errorf("%w: %d", ErrUnknown, h.id)
	case int64(h.from) >= int64(len(fds)):
		return fmt.Errorf("%w: index %d of a set of %d", ErrMalformed, h.from, len(fds))
	}
	a.id, a.from, a.count = h.id, h.from, uint32(len(fds))
	a.fds = fds[h.from:min(len(fds), int(h.from)+sock.MaxFDs)]
	return nil
}

// close closes everything, and waits for it a second at most.
func (s *store) close() {
	s.dropHalf()
	var fds []int
	for _, set := range s.sets {
		fds = append(fds, set...)
	}
	if s.manifest >= 0 {
		fds = append(fds, s.manifest)
	}
	clear(s.sets)
	s.manifest, s.held = -1, 0
	_ = sock.CloseFiles(asFiles(fds))
}
