package soft

import (
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// trailerSize is what follows the data in a file of device memory.
const trailerSize = 4096

// trailerMagic begins a trailer; the number is the format's version.
const trailerMagic = "gpufd soft mem 1"

// Kinds of memory.
const (
	kindGeneric = 1 // of cuMemCreate
	kindLinear  = 2 // of cuMemAlloc
	kindBlock   = 3 // of a memory pool

	// None, but what is shared otherwise:
	kindControl     = 4 // a pool
	kindExport      = 5 // of memory that cuIpcGetMemHandle gave out, while its owner has it; and of its owner
	kindSharedEvent = 6 // of cuIpcGetEventHandle
)

// blockSize is the unit of stat's count of blocks.
const blockSize = 512

// A trailer says of a file what the real driver knows of an fd that it exported:
// that it is device memory (D8), its size, and its device.
type trailer struct {
	kind    uint32
	ordinal int // of the device, or hostOrdinal
	size    uint64
	uuid    [16]byte
	id      [8]byte
	pool    [8]byte // that it is a block of, if that can be shared; else 0. Of kindExport, the memory
}

// trailerBytes is how many bytes of the trailer's page mean something.
const trailerBytes = 64

// name returns the file's name in its store. Accounting uses the size in it,
// which a peer that truncates the file cannot change.
func (t *trailer) name() string {
	switch {
	case t.bare():
		return fmt.Sprintf("%s%x", barePrefixes[t.kind], t.id)
	case t.shared():
		return fmt.Sprintf("gpu%d-%d-%x-%x.mem", t.ordinal, t.size, t.id, t.pool)
	}
	return fmt.Sprintf("gpu%d-%d-%x.mem", t.ordinal, t.size, t.id)
}

// bare reports whether the file holds no memory.
func (t *trailer) bare() bool { return barePrefixes[t.kind] != "" }

// shared reports whether the memory belongs to a pool that can be shared.
func (t *trailer) shared() bool { return t.pool != [8]byte{} }

// sizeInName returns the size of the memory in a file of that name.
func sizeInName(name string) (size uint64) {
	var ordinal int
	fmt.Sscanf(name, "gpu%d-%d-", &ordinal, &size)
	return size
}

// controlPrefix begins the names of the files that pools are.
const controlPrefix = "pool-"

// barePrefixes begin the names of the files that are of no memory, by kind.
var barePrefixes = map[uint32]string{kindControl: controlPrefix, kindExport: "ipc-", kindSharedEvent: "event-"}

// poolInName returns the name of the pool's file, if memory in a file of that
// name is of a pool.
func poolInName(name string) (control string, ok bool) {
	parts := strings.Split(strings.TrimSuffix(name, ".mem"), "-")
	if len(parts) != 4 {
		return "", false
	}
	return controlPrefix + parts[3], true
}

// write puts the trailer behind the data.
func (t *trailer) write(fd int) error {
	_, err := unix.Pwrite(fd, t.bytes(), int64(t.size))
	return err
}

// bytes is what the trailer looks like in its file.
func (t *trailer) bytes() []byte {
	b := append(make([]byte, 0, trailerBytes), trailerMagic...)
	b = binary.LittleEndian.AppendUint32(b, t.kind)
	b = binary.LittleEndian.AppendUint32(b, uint32(t.ordinal))
	b = binary.LittleEndian.AppendUint64(b, t.size)
	b = append(b, t.uuid[:]...)
	b = append(b, t.id[:]...)
	return append(b, t.pool[:]...)
}

// readTrailer reads the trailer of a regular file that is open for reading and
// writing; ok is false for anything that this package did not make. It refuses a
// file with holes: reading those would take memory of this machine that its owner
// has not paid for. It never blocks, whatever the fd is.
func readTrailer(fd int) (t *trailer, ok bool) {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size < trailerSize {
		return nil, false
	}
	if st.Blocks < (st.Size+blockSize-1)/blockSize {
		return nil, false
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDWR {
		return nil, false
	}
	var b [trailerBytes]byte
	n, err := unix.Pread(fd, b[:], st.Size-trailerSize)
	if err != nil || n != len(b) {
		return nil, false
	}
	return parseTrailer(b, uint64(st.Size-trailerSize))
}

// parseTrailer reads the trailer of a file with size bytes of data.
func parseTrailer(b [trailerBytes]byte, size uint64) (t *trailer, ok bool) {
	t = &trailer{
		kind:    binary.LittleEndian.Uint32(b[16:]),
		ordinal: int(binary.LittleEndian.Uint32(b[20:])),
		size:    binary.LittleEndian.Uint64(b[24:]),
		uuid:    [16]byte(b[32:48]),
		id:      [8]byte(b[48:56]),
		pool:    [8]byte(b[56:64]),
	}
	place := t.ordinal < maxDevices || t.host() && t.kind == kindGeneric
	ok = string(b[:16]) == trailerMagic && t.size == size && (size > 0) != t.bare() && place
	return t, ok
}
