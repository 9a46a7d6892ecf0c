package soft

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/gpufd/gpufd/cu/sys"
)

// These begin what cuIpcGetMemHandle and cuIpcGetEventHandle return; the number
// is the format's version.
var (
	memMagic   = [8]byte([]byte("gpufdmh1"))
	eventMagic = [8]byte([]byte("gpufdeh1"))
)

// An ipcHandle is the 64 bytes of either.
type ipcHandle struct {
	Magic   [8]byte
	Process [8]byte // that gave it out
	Serial  [8]byte // differs for each memory; nothing reads it (D16)
	At      uint64  // address of the memory, in that process; otherwise the id of its file
	File    uint64  // size of the memory's file; of an event, where /dev/shm is
	Size    uint64  // that was asked for
	Ordinal uint32  // of the device
	Place   uint32  // of the owner's directory, the only one that has the memory's file
}

// serialAt is where the serial is.
const serialAt = 16

// encode returns the bytes. The last are a digest of all but the serial, which
// tells foreign handles apart without a look at files.
func (h *ipcHandle) encode(s *store) (b [64]byte) {
	place := *h
	place.Serial = [8]byte{}
	binary.Encode(b[:], binary.LittleEndian, place)
	digest := sha256.Sum256(append(s.id[:], b[:56]...))
	copy(b[56:], digest[:])
	copy(b[serialAt:], h.Serial[:])
	return b
}

// export returns the file that says that the owner has the memory. It depends
// only on place and size, so an old handle leads to new memory there (D16).
func (h *ipcHandle) export() trailer {
	b := h.encode(&store{})
	return trailer{kind: kindExport, id: [8]byte(b[56:])}
}

// ownerOf returns the file that says that a process with shared memory lives.
func ownerOf(process [8]byte) trailer { return trailer{kind: kindExport, id: process} }

// decodeIPC reads what encode gives; ok is false for anything else.
func decodeIPC(magic [8]byte, b [64]byte, s *store) (h ipcHandle, ok bool) {
	binary.Decode(b[:], binary.LittleEndian, &h)
	return h, h.Magic == magic && h.encode(s) == b
}

// ipcContext returns the current context, if the devices have legacy IPC.
func (m *machine) ipcContext() (*context, sys.CUresult) {
	ctx, r := m.current()
	if r == sys.CUDA_SUCCESS && m.conf.ipc == 0 {
		r = sys.CUDA_ERROR_NOT_SUPPORTED
	}
	return ctx, r
}

// cuIpcGetMemHandle returns the same handle each time, for any address in its
// memory. Only memory of cuMemAlloc has one (D16).
func (m *machine) cuIpcGetMemHandle(out *sys.CUipcMemHandle, ptr sys.CUdeviceptr) sys.CUresult {
	return withContext(m, m.ipcContext, func(*context) sys.CUresult {
		p := m.pointee(uintptr(ptr))
		if out == nil || !p.exportable() {
			return sys.CUDA_ERROR_INVALID_VALUE
		}
		phys := p.mapping.phys
		h := ipcHandle{
			Magic: memMagic, Process: m.token, Serial: phys.id, At: uint64(p.mapping.base),
			File: phys.size, Size: uint64(p.mapping.size), Ordinal: uint32(phys.ordinal), Place: m.store.place,
		}
		r := m.exportMemory(phys, &h)
		if r == sys.CUDA_SUCCESS {
			out.Reserved = h.encode(m.store)
		}
		return r
	})
}

// endOwner says that this process shares no memory any more, once it has no
// context.
func (m *machine) endOwner() {
	if m.owner != nil && len(m.contexts) == 0 {
		m.dropControl(m.owner)
		m.owner = nil
	}
}

// exportMemory makes the files that say that there is the memory and its owner.
func (m *machine) exportMemory(phys *physical, h *ipcHandle) (r sys.CUresult) {
	if m.owner == nil {
		if m.owner, r = m.newControl(phys.dev, ownerOf(m.token)); r != sys.CUDA_SUCCESS {
			return r
		}
	}
	if phys.export == nil {
		t := h.export()
		t.pool = phys.id
		phys.export, r = m.newControl(phys.dev, t)
	}
	return r
}

// exportable reports whether cuIpcGetMemHandle takes the address.
func (p *pointee) exportable() bool {
	return p.linear() && !p.reservation.fixed && !p.reservation.external && p.reservation.opened == nil
}

// An opened is memory of another process that cuIpcOpenMemHandle has mapped.
type opened struct {
	handle ipcHandle
	count  int // how often it was opened
}

// cuIpcOpenMemHandle_v2 maps memory of another process in the current context, or
// counts another use of such a mapping (D16).
func (m *machine) cuIpcOpenMemHandle_v2(out *sys.CUdeviceptr, handle sys.CUipcMemHandle, flags uint32) sys.CUresult {
	return withContext(m, m.ipcContext, func(ctx *context) sys.CUresult {
		h, ok := decodeIPC(memMagic, handle.Reserved, m.store)
		switch {
		case out == nil || !ok || flags&uint32(sys.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == 0: // what else is set is not looked at
			return sys.CUDA_ERROR_INVALID_VALUE
		case [4]byte(h.Process[:]) == [4]byte(m.token[:]):
			return sys.CUDA_ERROR_INVALID_CONTEXT // D16: its own, or D18: of a process with its number in another PID namespace
		case h.Place != m.store.place:
			return sys.CUDA_ERROR_MAP_FAILED // that of another user, mostly
		case m.openedElsewhere(h, ctx):
			return sys.CUDA_ERROR_INVALID_HANDLE
		}
		v := m.openedIn(ctx, h)
		if v == nil {
			var r sys.CUresult
			if v, r = m.openMemory(ctx, h); r != sys.CUDA_SUCCESS {
				return r
			}
		}
		v.opened.count++
		return set(out, sys.CUdeviceptr(v.base))
	})
}

// openedIn returns where a context has the memory, or nil.
func (m *machine) openedIn(ctx *context, h ipcHandle) *reservation {
	for _, v := range m.space.reservations {
		if v.opened != nil && v.linear == ctx && v.opened.handle == h {
			return v
		}
	}
	return nil
}

// openedElsewhere reports whether another context of the same device has memory
// of the same process and device: one context per device may.
func (m *machine) openedElsewhere(h ipcHandle, ctx *context) bool {
	return slices.ContainsFunc(m.space.reservations, func(v *reservation) bool {
		o := v.opened
		return o != nil && v.linear != ctx && v.linear.dev == ctx.dev && o.handle.Process == h.Process && o.handle.Ordinal == h.Ordinal
	})
}

// openMemory maps memory of another process for the first time.
func (m *machine) openMemory(ctx *context, h ipcHandle) (*reservation, sys.CUresult) {
	dev := m.exporterDevice(h)
	if r := m.reachable(ctx, dev); r != sys.CUDA_SUCCESS {
		return nil, r
	}
	owner, export := ownerOf(h.Process), h.export()
	if !m.store.held(&owner) {
		return nil, sys.CUDA_ERROR_INVALID_HANDLE // D16: the owner has ended
	}
	t := trailer{kind: kindLinear, ordinal: dev.ordinal, size: h.File, uuid: dev.uuid}
	fd, err := m.store.openNamed(&export, &t)
	if errors.Is(err, errFreed) {
		return nil, sys.CUDA_ERROR_INVALID_VALUE // D16: it was freed
	}
	if err != nil {
		return nil, sys.CUDA_ERROR_MAP_FAILED
	}
	p, r := m.adoptOpened(fd, t, dev, sys.CUDA_ERROR_MAP_FAILED)
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	v, r := m.placeLinear(ctx, p, uintptr(h.Size))
	if r == sys.CUDA_SUCCESS {
		v.opened = &opened{handle: h}
	}
	return v, r
}

// exporterDevice returns the memory's device, which need not be visible here.
func (m *machine) exporterDevice(h ipcHandle) *device {
	ordinal := int(h.Ordinal)
	t := trailer{ordinal: ordinal, uuid: m.store.uuid(ordinal)}
	if d := m.deviceOf(&t); d != nil {
		return d
	}
	return &device{ordinal: ordinal, uuid: t.uuid, memory: m.conf.memory}
}

// maxPeers is how many other devices' memory a context can reach.
const maxPeers = 8

// reachable returns why a context cannot get access to a device's memory.
func (m *machine) reachable(ctx *context, dev *device) sys.CUresult {
	switch {
	case dev == ctx.dev:
		return sys.CUDA_SUCCESS
	case !m.linked(ctx.dev, dev):
		return sys.CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
	}
	reached := map[int]bool{dev.ordinal: true}
	for peer := range ctx.peers {
		reached[peer.dev.ordinal] = true
	}
	for _, v := range m.space.reservations {
		if v.opened != nil && v.linear == ctx && int(v.opened.handle.Ordinal) != ctx.dev.ordinal {
			reached[int(v.opened.handle.Ordinal)] = true
		}
	}
	if len(reached) > maxPeers {
		return sys.CUDA_ERROR_TOO_MANY_PEERS
	}
	return sys.CUDA_SUCCESS
}

// cuIpcCloseMemHandle counts down and unmaps with the last, after the work of the
// context that has it open, whichever is current. One close too many is an error
// (D16).
func (m *machine) cuIpcCloseMemHandle(ptr sys.CUdeviceptr) sys.CUresult {
	return m.afterWork(func() (*context, sys.CUresult) {
		_, r := m.ipcContext()
		v := m.openedAt(ptr)
		switch {
		case r != sys.CUDA_SUCCESS:
			return nil, r
		case v == nil:
			return nil, sys.CUDA_ERROR_INVALID_VALUE
		case v.opened.count > 1:
			v.opened.count--
			return nil, r
		}
		return v.linear, r
	}, func() sys.CUresult {
		v := m.openedAt(ptr)
		if v == nil {
			return sys.CUDA_ERROR_INVALID_VALUE // closed by another thread
		}
		if v.opened.count--; v.opened.count == 0 {
			m.freeReservation(v)
		}
		return sys.CUDA_SUCCESS
	})
}

// openedAt returns what is open at exactly ptr, or nil.
func (m *machine) openedAt(ptr sys.CUdeviceptr) *reservation {
	v := m.space.reservation(uintptr(ptr))
	if v == nil || v.opened == nil || v.base != uintptr(ptr) {
		return nil
	}
	return v
}

// fromID and toID turn the id of a file into a number and back.
func fromID(id [8]byte) uint64 { return binary.LittleEndian.Uint64(id[:]) }

func toID(n uint64) (id [8]byte) {
	binary.LittleEndian.PutUint64(id[:], n)
	return id
}
