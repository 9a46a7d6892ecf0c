package soft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpufd/gpufd/cu/soft/internal/ptx"
	"github.com/gpufd/gpufd/cu/sys"
	"golang.org/x/sys/unix"
)

// maxImage limits the length of PTX and of names, whose final zero may be
// missing.
const maxImage = 1 << 28

// First bytes of images.
const (
	elfMagic     = 0x464c457f
	fatMagic     = 0xba55ed50
	wrapperMagic = 0x466243b1 // of what nvcc puts into programs around a fatbin
)

// imageText finds the PTX in an image in memory: itself, or the first that is
// not compressed in a fatbin. Machine code is for no device here.
func imageText(image *byte) (string, sys.CUresult) {
	if image == nil {
		return "", sys.CUDA_ERROR_INVALID_VALUE
	}
	text := sys.GoString(image, maxImage)
	if len(text) < 4 {
		return "", sys.CUDA_ERROR_INVALID_IMAGE
	}
	switch binary.LittleEndian.Uint32([]byte(text)) {
	case elfMagic:
		return "", sys.CUDA_ERROR_NO_BINARY_FOR_GPU
	case fatMagic:
		return fatText(image)
	case wrapperMagic:
		return wrapperText(image)
	}
	if !ptx.Is(text) {
		return "", sys.CUDA_ERROR_INVALID_IMAGE
	}
	return text, sys.CUDA_SUCCESS
}

// wrapperText is imageText for a fatbin that another structure points to.
func wrapperText(image *byte) (string, sys.CUresult) {
	inner := binary.LittleEndian.Uint64(sliceOf(image, 16)[8:])
	if inner < lowest {
		return "", sys.CUDA_ERROR_INVALID_IMAGE
	}
	b := bytesAt(uintptr(inner), 4)
	if binary.LittleEndian.Uint32(b) != fatMagic {
		return "", sys.CUDA_ERROR_INVALID_IMAGE
	}
	return fatText(&b[0])
}

// fatText is imageText for a fatbin: a header and entries, each with a header of
// its own. Sizes are those after the headers.
func fatText(image *byte) (string, sys.CUresult) {
	const header, entry, isPTX = 16, 64, 1
	h := sliceOf(image, header)
	size := binary.LittleEndian.Uint64(h[8:])
	skip := uint64(binary.LittleEndian.Uint16(h[6:]))
	if size > maxImage || skip < header {
		return "", sys.CUDA_ERROR_INVALID_IMAGE
	}
	for b := sliceOf(image, uintptr(skip+size))[skip:]; len(b) >= entry; {
		head, body := uint64(binary.LittleEndian.Uint32(b[4:])), binary.LittleEndian.Uint64(b[8:])
		if head < entry || body > uint64(len(b)) || head > uint64(len(b))-body {
			return "", sys.CUDA_ERROR_INVALID_IMAGE
		}
		if compressed := binary.LittleEndian.Uint64(b[56:]) != 0; binary.LittleEndian.Uint16(b) == isPTX && !compressed {
			text, _, _ := strings.Cut(string(b[head:head+body]), "\x00")
			return text, sys.CUDA_SUCCESS
		}
		b = b[head+body:]
	}
	return "", sys.CUDA_ERROR_NO_BINARY_FOR_GPU
}

// fileText is imageText for a file.
func fileText(name *byte) (string, sys.CUresult) {
	if name == nil {
		return "", sys.CUDA_ERROR_INVALID_VALUE
	}
	b, r := fileBytes(sys.GoString(name, maxImage))
	if r != sys.CUDA_SUCCESS {
		return "", r
	}
	b = append(b, make([]byte, 16)...) // a header that was cut short reads zeros
	if len(b) >= 32 && binary.LittleEndian.Uint32(b) == fatMagic {
		size := uint64(binary.LittleEndian.Uint16(b[6:])) + binary.LittleEndian.Uint64(b[8:])
		if binary.LittleEndian.Uint64(b[8:]) > maxImage || size > uint64(len(b)) {
			return "", sys.CUDA_ERROR_INVALID_IMAGE
		}
	}
	if binary.LittleEndian.Uint32(b) == wrapperMagic {
		return "", sys.CUDA_ERROR_INVALID_IMAGE // it points into the program that wrote it
	}
	return imageText(&b[0])
}

// fileBytes reads a file of at most maxImage bytes. It never waits: it refuses a
// pipe, for which the real driver waits.
func fileBytes(path string) ([]byte, sys.CUresult) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, sys.CUDA_ERROR_FILE_NOT_FOUND
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err == nil && info.IsDir():
		return nil, sys.CUDA_ERROR_OUT_OF_MEMORY // of all things, as on an H200
	case err != nil || !info.Mode().IsRegular() || info.Size() > maxImage:
		return nil, sys.CUDA_ERROR_INVALID_IMAGE
	}
	b, err := io.ReadAll(io.LimitReader(f, info.Size()))
	if err != nil {
		return nil, sys.CUDA_ERROR_INVALID_IMAGE
	}
	return b, sys.CUDA_SUCCESS
}

// jitOptions are a caller's options for the compiler, and where its results go.
type jitOptions struct {
	ids    []sys.CUjit_option
	values []uintptr
	began  time.Time
}

// newJITOptions reads n options; ok is false if one is unknown.
func newJITOptions(n uint32, ids *sys.CUjit_option, values *uintptr) (o jitOptions, ok bool) {
	o.began = time.Now()
	if n == 0 {
		return o, true
	}
	if ids == nil || values == nil || n > uint32(sys.CU_JIT_NUM_OPTIONS)*2 {
		return o, false
	}
	o.ids, o.values = array(ids, uintptr(n)), array(values, uintptr(n))
	for _, id := range o.ids {
		if id >= sys.CU_JIT_NUM_OPTIONS {
			return o, false
		}
	}
	return o, true
}

// set stores a value that the compiler returns.
func (o *jitOptions) set(id sys.CUjit_option, v uintptr) {
	for i := range o.ids {
		if o.ids[i] == id {
			o.values[i] = v
		}
	}
}

func (o *jitOptions) get(id sys.CUjit_option) uintptr {
	for i := range o.ids {
		if o.ids[i] == id {
			return o.values[i]
		}
	}
	return 0
}

// unoptimised reports whether nothing is to be optimised.
func (o *jitOptions) unoptimised() bool {
	level := slices.Contains(o.ids, sys.CU_JIT_OPTIMIZATION_LEVEL) && o.get(sys.CU_JIT_OPTIMIZATION_LEVEL) == 0
	return level || o.get(sys.CU_JIT_GENERATE_DEBUG_INFO) != 0
}

// log writes a log into the caller's buffer, cut to fit, and how long it is.
func (o *jitOptions) log(buffer, size sys.CUjit_option, text string) {
	at, n := o.get(buffer), o.get(size)
	if at < lowest || n == 0 {
		o.set(size, 0)
		return
	}
	b := bytesAt(at, n)
	written := copy(b[:n-1], text)
	b[written] = 0
	if written < len(text) {
		written++ // all of the buffer, the zero included
	}
	o.set(size, uintptr(written))
}

// compile reads the PTX that text returns, and writes to the logs what is wrong with it.
// That takes a while, so the machine must not be locked.
func (m *machine) compile(text func() (string, sys.CUresult), o jitOptions) (*ptx.Module, sys.CUresult) {
	s, r := text()
	if r != sys.CUDA_SUCCESS {
		return nil, r
	}
	parsed, err := m.cache.parse(s, o.unoptimised())
	r, complaint := judge(parsed, err, m.config().version)
	info := ""
	if r == sys.CUDA_SUCCESS && o.get(sys.CU_JIT_LOG_VERBOSE) != 0 {
		info = fmt.Sprintf("soft : 0 bytes gmem, %d kernels\n", len(parsed.Entries()))
	}
	o.log(sys.CU_JIT_INFO_LOG_BUFFER, sys.CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, info)
	o.log(sys.CU_JIT_ERROR_LOG_BUFFER, sys.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, complaint)
	o.set(sys.CU_JIT_WALL_TIME, uintptr(math.Float32bits(float32(time.Since(o.began).Seconds()*1000))))
	return parsed, r
}

// judge turns what the parser says into a result and a log, which names the line
// as the real one does.
func judge(parsed *ptx.Module, err error, version int) (sys.CUresult, string) {
	var bad *ptx.Error
	switch {
	case errors.As(err, &bad) && bad.Newer, err == nil && newerPTX(parsed.Version, version):
		return sys.CUDA_ERROR_UNSUPPORTED_PTX_VERSION, complain(1, "Unsupported .version: the driver is older")
	case errors.As(err, &bad):
		return sys.CUDA_ERROR_INVALID_PTX, complain(bad.Line, bad.Text)
	case parsed.Architecture() == 0 || parsed.Architecture() > 10*computeMajor+computeMinor:
		return sys.CUDA_ERROR_INVALID_PTX, complain(1, "the device is older than .target "+parsed.Target)
	}
	return sys.CUDA_SUCCESS, ""
}

func complain(line int, text string) string {
	return fmt.Sprintf("ptxas application ptx input, line %d; error   : %s\nptxas fatal   : Ptx assembly aborted due to errors", line, text)
}

// newerPTX reports whether PTX is newer than a driver of a CUDA version reads:
// those of CUDA 11.n and 12.n up to 12.5 read 7.n and 8.n.
func newerPTX(ptxVersion string, cuda int) bool {
	major, minor, _ := strings.Cut(ptxVersion, ".")
	a, _ := strconv.Atoi(major)
	b, _ := strconv.Atoi(minor)
	latest := (cuda/1000-4)*10 + cuda%1000/10
	if cuda >= 12060 && cuda < 13000 {
		latest-- // 12.6 brought none
	}
	return a*10+b > latest
}
