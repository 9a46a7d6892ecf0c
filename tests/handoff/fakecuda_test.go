package handoff

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/tests/internal/programs"
)

// An answer is what a function of a fake libcuda does: store 32 bits where its
// first argument points, if told to, and return a result.
type answer struct {
	store  []uint32 // at most one
	result uint16
}

func returns(result uint16) answer { return answer{result: result} }

func stores(v uint32) answer { return answer{store: []uint32{v}} }

// code is the function's machine code for this machine.
func (a answer) code() []byte {
	le := binary.LittleEndian
	if runtime.GOARCH == "arm64" {
		var b []byte
		for _, v := range a.store {
			b = le.AppendUint32(b, 0x52800009|v&0xffff<<5) // movz w9, #low
			b = le.AppendUint32(b, 0x72a00009|v>>16<<5)    // movk w9, #high, lsl 16
			b = le.AppendUint32(b, 0xb9000009)             // str w9, [x0]
		}
		b = le.AppendUint32(b, 0x52800000|uint32(a.result)<<5) // movz w0, #result
		return le.AppendUint32(b, 0xd65f03c0)                  // ret
	}
	var b []byte
	for _, v := range a.store {
		b = le.AppendUint32(append(b, 0xc7, 0x07), v) // mov dword [rdi], v
	}
	b = le.AppendUint32(append(b, 0xb8), uint32(a.result)) // mov eax, result
	return append(b, 0xc3)                                 // ret
}

// fakeLibcuda writes a libcuda.so.1 with those functions and returns the
// environment in which the dynamic linker finds it first.
func fakeLibcuda(t *testing.T, functions map[string]answer) []string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libcuda.so.1"), sharedObject(functions), 0o700))
	return []string{"LD_LIBRARY_PATH=" + dir}
}

// The shared object's dynamic section is in its own segment, which the linker writes to. The
// alignment suits pages of 64 KiB.
const (
	segmentAlign = 0x10000
	headersSize  = 64 + 4*56
)

// sharedObject is an ELF file with those functions and nothing else: no
// sections, one hash bucket.
func sharedObject(functions map[string]answer) []byte {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	text := bytes.NewBuffer(nil)
	names := bytes.NewBufferString("\x00libcuda.so.1\x00")
	symbols := []elf.Sym64{{}}
	hash := []uint32{1, uint32(len(functions) + 1), 1, 0} // buckets, chains, bucket 0, chain of symbol 0
	for name, f := range functions {
		for text.Len()%16 != 0 {
			text.WriteByte(0)
		}
		symbols = append(symbols, elf.Sym64{
			Name: uint32(names.Len()), Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC), Shndx: 1,
			Value: uint64(headersSize + text.Len()), Size: uint64(len(f.code())),
		})
		hash = append(hash, uint32(len(symbols)))
		names.WriteString(name + "\x00")
		text.Write(f.code())
	}
	hash[len(hash)-1] = 0 // the end of the chain
	if len(functions) == 0 {
		hash[2] = 0
	}
	for text.Len()%8 != 0 {
		text.WriteByte(0)
	}

	symbolsAt := uint64(headersSize + text.Len())
	hashAt := symbolsAt + uint64(len(symbols)*elf.Sym64Size)
	namesAt := hashAt + uint64(4*len(hash))
	end := namesAt + uint64(names.Len())
	dynamic := []elf.Dyn64{
		{Tag: int64(elf.DT_SONAME), Val: 1},
		{Tag: int64(elf.DT_HASH), Val: hashAt},
		{Tag: int64(elf.DT_STRTAB), Val: namesAt},
		{Tag: int64(elf.DT_SYMTAB), Val: symbolsAt},
		{Tag: int64(elf.DT_STRSZ), Val: uint64(names.Len())},
		{Tag: int64(elf.DT_SYMENT), Val: elf.Sym64Size},
		{Tag: int64(elf.DT_NULL)},
	}
	dynamicAt := programs.AlignUp(end, segmentAlign)
	dynamicSize := uint64(16 * len(dynamic))
	segments := []elf.Prog64{
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X), Filesz: end, Memsz: end, Align: segmentAlign},
		{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_W), Off: dynamicAt, Vaddr: dynamicAt, Paddr: dynamicAt,
			Filesz: dynamicSize, Memsz: dynamicSize, Align: segmentAlign},
		{Type: uint32(elf.PT_DYNAMIC), Flags: uint32(elf.PF_R | elf.PF_W), Off: dynamicAt, Vaddr: dynamicAt, Paddr: dynamicAt,
			Filesz: dynamicSize, Memsz: dynamicSize, Align: 8},
		{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16},
	}
	header := elf.Header64{
		Ident:   [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:    uint16(elf.ET_DYN),
		Machine: uint16(machine),
		Version: uint32(elf.EV_CURRENT),
		Phoff:   64, Ehsize: 64, Phentsize: 56, Phnum: uint16(len(segments)), Shentsize: 64,
	}
	var file bytes.Buffer
	for _, part := range []any{header, segments, text.Bytes(), symbols, hash, names.Bytes(), make([]byte, dynamicAt-end), dynamic} {
		_ = binary.Write(&file, binary.LittleEndian, part) // a buffer takes everything of fixed size
	}
	return file.Bytes()
}

// fakeDevice is a libcuda with one device, and without virtual memory
// management: its functions are not there, the attributes say it is.
var fakeDevice = map[string]answer{
	"cuInit":                       returns(0),
	"cuDriverGetVersion":           stores(9000),
	"cuDeviceGetCount":             stores(1),
	"cuDeviceGet":                  stores(0),
	"cuDeviceGetName":              stores('f' | 'a'<<8 | 'k'<<16 | 'e'<<24),
	"cuDeviceGetUuid":              stores(0x12345678),
	"cuDeviceGetAttribute":         stores(1),
	"cuDevicePrimaryCtxRetain":     stores(0x1000),
	"cuDevicePrimaryCtxRelease_v2": returns(0),
}

// with returns the functions with some of them replaced.
func with(functions map[string]answer, other map[string]answer) map[string]answer {
	functions = maps.Clone(functions)
	maps.Copy(functions, other)
	return functions
}
