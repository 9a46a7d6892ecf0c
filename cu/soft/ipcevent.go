package soft

import (
	"errors"
	"io/fs"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/gpufd/gpufd/cu/sys"
	"golang.org/x/sys/unix"
)

// A sharedEvent is the file of an event for other processes. It counts the
// records of the event, by any process, and has slots that say which records have
// happened: each is waited for by itself, so that a later one does not end a wait
// for one that never comes (D20b). refs counts the event and the work under way.
type sharedEvent struct {
	*control
	refs int
}

// Offsets of the words in the file, behind its trailer, and how many
// records can be under way at once.
const (
	recordedAt  = 2 * trailerBytes
	slotsAt     = recordedAt + 8
	recordSlots = 256
)

// newSharedEvent makes one, with one reference.
func (m *machine) newSharedEvent(d *device) (*sharedEvent, sys.CUresult) {
	c, r := m.newControl(d, trailer{kind: kindSharedEvent})
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	return &sharedEvent{c, 1}, r
}

// dropEvent takes a reference away.
func (m *machine) dropEvent(e *sharedEvent) {
	if e == nil {
		return
	}
	if e.refs--; e.refs == 0 {
		m.dropControl(e.control)
	}
}

// word returns one of the words.
func (e *sharedEvent) word(at uintptr) []byte { return bytesAt(e.alias+at, 8) }

// guarded calls f, which reads or writes words. If somebody has cut the file
// short, that is an illegal address.
func (e *sharedEvent) guarded(f func()) sys.CUresult {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	if _, faulted := touch(f); faulted {
		return sys.CUDA_ERROR_ILLEGAL_ADDRESS
	}
	return sys.CUDA_SUCCESS
}

// latest returns the number of the latest record, 0 for none.
func (e *sharedEvent) latest() (n uint64, r sys.CUresult) {
	r = e.guarded(func() { n = loadWord(e.word(recordedAt)) })
	return n, r
}

// slot returns where the record with that number is.
func (e *sharedEvent) slot(n uint64) []byte { return e.word(slotsAt + uintptr(n%recordSlots)*8) }

// happened reports whether the record of that number has.
func (e *sharedEvent) happened(n uint64) (yes bool, r sys.CUresult) {
	r = e.guarded(func() { yes = loadWord(e.slot(n)) >= n })
	return yes, r
}

// query says whether the latest record has happened, or that it has not yet.
func (e *sharedEvent) query() sys.CUresult {
	n, r := e.latest()
	if r != sys.CUDA_SUCCESS {
		return r
	}
	yes, r := e.happened(n)
	if r == sys.CUDA_SUCCESS && !yes {
		return sys.CUDA_ERROR_NOT_READY
	}
	return r
}

// recordShared queues the next record.
func (m *machine) recordShared(e *sharedEvent, s *stream) sys.CUresult {
	var n uint64
	if r := e.guarded(func() { n = addWord(e.word(recordedAt)) }); r != sys.CUDA_SUCCESS {
		return s.ctx.lose(r)
	}
	e.refs++
	m.enqueue(s, &op{
		run:     func() sys.CUresult { return e.guarded(func() { raiseWord(e.slot(n), n) }) },
		release: func() { m.dropEvent(e) },
	})
	return sys.CUDA_SUCCESS
}

// waitShared makes a stream wait for the present latest record.
func (m *machine) waitShared(e *sharedEvent, s *stream) sys.CUresult {
	n, r := e.latest()
	if r != sys.CUDA_SUCCESS {
		return s.ctx.lose(r)
	}
	e.refs++
	m.enqueue(s, &op{
		run:     func() sys.CUresult { return m.pollShared(s.ctx, e, n) },
		release: func() { m.dropEvent(e) },
	})
	return r
}

// syncShared waits for the latest record. It is called with the machine locked,
// and unlocks it.
func (m *machine) syncShared(ctx *context, e *sharedEvent) sys.CUresult {
	n, r := e.latest()
	e.refs++
	m.mu.Unlock()
	if r == sys.CUDA_SUCCESS {
		r = m.pollShared(ctx, e, n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dropEvent(e)
	return firstError(ctx.lose(r), ctx.sticky)
}

// lose loses the context to r, unless that is success, and returns r. The machine
// is locked.
func (ctx *context) lose(r sys.CUresult) sys.CUresult {
	if r != sys.CUDA_SUCCESS {
		ctx.fail(r)
	}
	return r
}

// pollShared polls, like a stream that waits for a value. Nothing tells it that
// the process that is to record has died.
func (m *machine) pollShared(ctx *context, e *sharedEvent, n uint64) sys.CUresult {
	for i, pause := 0, waitMin; ; i++ {
		yes, r := e.happened(n)
		if yes || r != sys.CUDA_SUCCESS {
			return r
		}
		if r := m.stickyOf(ctx); r != sys.CUDA_SUCCESS {
			return r
		}
		if i < waitSpins {
			runtime.Gosched()
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, waitMax)
	}
}

// cuIpcGetEventHandle requires an event for other processes, made here.
func (m *machine) cuIpcGetEventHandle(out *sys.CUipcEventHandle, h sys.CUevent) sys.CUresult {
	return with(m, m.findEvent, h, func(e *event) sys.CUresult {
		switch {
		case m.conf.ipc == 0:
			return sys.CUDA_ERROR_NOT_SUPPORTED
		case e.shared == nil || e.imported:
			return sys.CUDA_ERROR_INVALID_HANDLE
		case out == nil:
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		id := ipcHandle{Magic: eventMagic, Process: m.token, At: fromID(e.shared.id), File: sharedMemoryDir(), Ordinal: uint32(e.shared.ordinal), Place: m.store.place}
		out.Reserved = id.encode(m.store)
		return sys.CUDA_SUCCESS
	})
}

// cuIpcOpenEventHandle makes an event of the current context from another
// process's handle.
func (m *machine) cuIpcOpenEventHandle(out *sys.CUevent, handle sys.CUipcEventHandle) sys.CUresult {
	return withContext(m, m.ipcContext, func(ctx *context) sys.CUresult {
		h, ok := decodeIPC(eventMagic, handle.Reserved, m.store)
		switch {
		case out == nil:
			return sys.CUDA_ERROR_INVALID_VALUE
		case !ok || h.File != sharedMemoryDir() || h.Place != m.store.place: // D16, D18
			return sys.CUDA_ERROR_MAP_FAILED
		case h.Process == m.token:
			return sys.CUDA_ERROR_INVALID_CONTEXT
		}
		shared, r := m.openEvent(ctx.dev, h)
		if r != sys.CUDA_SUCCESS {
			return r
		}
		*out = m.addEvent(&event{
			ctx: ctx, flags: uint32(sys.CU_EVENT_DISABLE_TIMING | sys.CU_EVENT_INTERPROCESS), shared: shared, imported: true,
		})
		return r
	})
}

// sharedMemoryDir identifies /dev/shm: containers without a common one cannot
// share events.
func sharedMemoryDir() uint64 {
	var st unix.Stat_t
	_ = unix.Stat("/dev/shm", &st)
	return st.Dev
}

// openEvent maps an event of another process. For one that is gone it makes one
// that was never recorded: the real driver opens those too (D16).
func (m *machine) openEvent(d *device, h ipcHandle) (*sharedEvent, sys.CUresult) {
	t := trailer{kind: kindSharedEvent, ordinal: int(h.Ordinal), uuid: m.store.uuid(int(h.Ordinal)), id: toID(h.At)}
	fd, err := m.store.open(&t)
	if errors.Is(err, fs.ErrNotExist) {
		return m.newSharedEvent(d)
	}
	if err != nil {
		return nil, sys.CUDA_ERROR_OPERATING_SYSTEM
	}
	defer unix.Close(fd)
	if have, ok := readTrailer(fd); !ok || *have != t {
		return nil, sys.CUDA_ERROR_MAP_FAILED
	}
	c, r := m.adoptControl(fd, t)
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	return &sharedEvent{c, 1}, r
}
