package cu

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"unsafe"

	"github.com/gpufd/gpufd/cu/sys"
)

// Dim3 is a size in up to three dimensions. A Y or Z of 0 counts as 1: Dim3{X:
// 256} is a line.
type Dim3 struct{ X, Y, Z uint32 }

// c returns d as C has it.
func (d Dim3) c() Dim3 { return Dim3{d.X, max(d.Y, 1), max(d.Z, 1)} }

// LaunchConfig says how to launch a kernel.
type LaunchConfig struct {
	Grid   Dim3   // number of blocks
	Block  Dim3   // threads per block
	Shared uint32 // bytes of shared memory per block, besides the kernel's own

	// Cooperative runs all blocks at once, so that they can wait for each other;
	// [ErrCooperativeLaunchTooLarge] if they do not fit.
	Cooperative bool
	// Priority is this launch's: lower is more urgent, 0 is the stream's (CUDA
	// 11.7).
	Priority int
	// Cluster is how many blocks run close to each other, on devices of compute
	// capability 9.0 or newer; zero is none, or the kernel's own (CUDA 11.8).
	Cluster Dim3
}

// An ArgumentError says that the arguments of a launch do not fit the kernel.
// Nothing reached the driver.
type ArgumentError struct {
	Function string
	Index    int // of the argument, from 0; -1 if their number is wrong
	Reason   string
}

// Error names the kernel and the argument.
func (e *ArgumentError) Error() string {
	if e.Index < 0 {
		return fmt.Sprintf("cu: kernel %s: %s", e.Function, e.Reason)
	}
	return fmt.Sprintf("cu: kernel %s: args[%d]: %s", e.Function, e.Index, e.Reason)
}

// Launch queues the kernel on s, a stream of its context, and returns before it
// is done (cuLaunchKernel; cuLaunchCooperativeKernel; cuLaunchKernelEx for a
// priority or a cluster, a [*SymbolError] before CUDA 11.8). It may be captured:
// the graph has a copy of the arguments.
//
// args are the kernel's parameters in order. Each is an int8 to int64, a uint8 to
// uint64, a float32 or float64, a [DevicePtr], or an array or struct of such with
// the layout of C's. For memory pass a [Pointer], such as [*Memory], a [Slice],
// [*HostMemory] or *vmm.Buffer. An int is refused, because C's has another size,
// and so is a bool. A mistake is an [*ArgumentError] before anything runs:
// drivers from CUDA 12.4 on know the number and sizes of the parameters. For
// older ones pass exactly what the kernel takes. Where the code was loaded as PTX, a whole
// number for a float is a mistake, too, and a float for a whole number.
//
// The caller keeps memory arguments open until the kernel is done. Closed memory,
// whose Ptr is 0, is refused ([ErrClosed]); for the null pointer pass
// DevicePtr(0).
//
// Errors: [ErrInvalidValue] for a grid or block that the device cannot have;
// [ErrLaunchOutOfResources] for one that needs too many registers. Both name what
// is too large, and the limit. If the kernel fails, a later call says so: see
// [ErrContextLost].
func (f *Function) Launch(s *Stream, cfg LaunchConfig, args ...any) error {
	l, err := f.prepare(cfg, args)
	if err != nil {
		return err
	}
	return l.Run(s)
}

// A Launch is a kernel with its arguments, to be run many times. It owns no
// handle and ends with its function. Runs may overlap. A Set must not overlap
// with another Set, or with a Run, which may find half of the argument changed.
type Launch struct {
	f     *Function
	cfg   LaunchConfig
	holds []any // memory among the arguments

	args   []unsafe.Pointer // of each argument, and then spare ones
	size   []uintptr        // of each
	memory []Pointer        // those that are memory; the others are nil
	op     string

	mu sync.Mutex          // guards ex's stream
	ex *sys.CUlaunchConfig // for cuLaunchKernelEx
}

// Prepare makes a Launch of what [Function.Launch] takes, and checks it. The
// Launch keeps its arguments reachable.
func (f *Function) Prepare(cfg LaunchConfig, args ...any) (*Launch, error) {
	return f.prepare(cfg, slices.Clone(args)) // the caller may use the slice again
}

// prepare is Prepare for arguments that stay the same.
func (f *Function) prepare(cfg LaunchConfig, args []any) (*Launch, error) {
	params, err := f.parameters()
	if errors.Is(err, ErrSymbolMissing) {
		params, err = nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := f.count(params, args); err != nil {
		return nil, err
	}
	cfg.Grid, cfg.Block = cfg.Grid.c(), cfg.Block.c()
	l := &Launch{f: f, cfg: cfg, holds: args}
	if err := l.lay(params, args); err != nil {
		return nil, err
	}
	l.choose()
	return l, nil
}

// count compares the number of arguments with the parameters, if they are known.
func (f *Function) count(params []Param, args []any) error {
	if params == nil || len(params) == len(args) {
		return nil
	}
	sizes := make([]uint64, len(params))
	for i, p := range params {
		sizes[i] = p.Size
	}
	return &ArgumentError{f.name, -1, fmt.Sprintf("it takes %d arguments, of %d bytes; %d were given", len(params), sizes, len(args))}
}

// spareArgs is how many zeros follow the arguments if the driver does not tell
// the number of parameters, and takes what it finds.
const spareArgs = 512

// argAlign is the alignment of every argument in memory: the most that C needs.
const argAlign = 16

// lay puts the arguments into memory.
func (l *Launch) lay(params []Param, args []any) error {
	size, spare := uintptr(0), 0
	l.memory = make([]Pointer, len(args))
	for i, a := range args {
		n, err := l.measure(i, a)
		if err != nil {
			return err
		}
		if params != nil && uint64(n) != params[i].Size {
			return l.wrong(i, fmt.Sprintf("%T has %d bytes; the parameter has %d", a, n, params[i].Size))
		}
		l.size = append(l.size, n)
		size += (n + argAlign - 1) &^ (argAlign - 1)
	}
	if params == nil {
		spare = spareArgs
	}
	l.args = make([]unsafe.Pointer, len(args), len(args)+spare+1)
	p := alignedMemory(size)
	for i, a := range args {
		l.args[i] = p
		if m, ok := memoryOf(a); ok {
			*(*DevicePtr)(p) = m.Ptr()
		} else {
			store(p, l.size[i], a)
		}
		p = unsafe.Add(p, (l.size[i]+argAlign-1)&^(argAlign-1))
	}
	for range spare + 1 {
		l.args = append(l.args, unsafe.Pointer(&zeros))
	}
	return nil
}

// alignedMemory returns size bytes that are aligned to argAlign: Go aligns to 8
// only.
func alignedMemory(size uintptr) unsafe.Pointer {
	const more = argAlign / 8
	p := unsafe.Pointer(unsafe.SliceData(make([]uint64, size/8+more)))
	return unsafe.Add(p, -uintptr(p)%argAlign)
}

// zeros is as large as all arguments of a kernel may be: 32764 bytes from CUDA
// 12.1 on, 4096 before. It is only read.
var zeros [32764 / 4]uint32

// memoryOf returns a as memory, unless it is a number or a struct of numbers. A DevicePtr is a
// number, and lends its Ptr to a struct that it is embedded in.
func memoryOf(a any) (m Pointer, ok bool) {
	m, ok = a.(Pointer)
	return m, ok && !lendsPtr(reflect.TypeOf(a))
}

// lendsPtr reports whether the Ptr of t is that of a DevicePtr.
func lendsPtr(t reflect.Type) bool {
	if t == reflect.TypeFor[DevicePtr]() {
		return true
	}
	if t.Kind() != reflect.Struct || !arguments.has(t) {
		return false
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous && lendsPtr(f.Type) {
			return true
		}
	}
	return false
}

// measure returns how many bytes argument i takes, or an error if it cannot be
// one.
func (l *Launch) measure(i int, a any) (uintptr, error) {
	m, ok := memoryOf(a)
	if !ok {
		return l.measureNumbers(i, reflect.TypeOf(a))
	}
	if v := reflect.ValueOf(a); v.Kind() == reflect.Pointer && v.IsNil() {
		return 0, l.wrong(i, fmt.Sprintf("a nil %T", a))
	}
	if why := l.f.misfits(i, reflect.Uint64); why != "" {
		return 0, l.wrong(i, fmt.Sprintf("%T is memory, and %s", a, why))
	}
	l.memory[i] = m
	return unsafe.Sizeof(DevicePtr(0)), l.checkOpen(i)
}

// checkOpen refuses argument i if it is closed memory.
func (l *Launch) checkOpen(i int) error {
	m := l.memory[i]
	if m == nil || m.Ptr() != 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", l.wrong(i, fmt.Sprintf("a closed %T, or memory of 0 bytes: its Ptr is 0; pass DevicePtr(0) for the null pointer", m)), ErrClosed)
}

func (l *Launch) measureNumbers(i int, t reflect.Type) (uintptr, error) {
	if t == nil {
		return 0, l.wrong(i, "nil is no argument; pass DevicePtr(0) for the null pointer")
	}
	if t.Size() == 0 || !arguments.has(t) {
		return 0, l.wrong(i, fmt.Sprintf("%s is no argument: pass numbers of a fixed size, arrays or structs of them, or memory", t))
	}
	if why := l.f.misfits(i, t.Kind()); why != "" {
		return 0, l.wrong(i, fmt.Sprintf("%s is of another kind: %s", t, why))
	}
	return t.Size(), nil
}

func (l *Launch) wrong(i int, reason string) error { return &ArgumentError{l.f.name, i, reason} }

// isFixed reports whether k is a number that is as large everywhere.
func isFixed(k reflect.Kind) bool {
	return isNumber(k) && k != reflect.Int && k != reflect.Uint && k != reflect.Uintptr && k < reflect.Complex64
}

// store writes the n bytes of a, which is no pointer, to p. a goes nowhere else,
// so that its caller need not put it on the heap.
func store(p unsafe.Pointer, n uintptr, a any) {
	value := (*struct{ typ, data unsafe.Pointer })(unsafe.Pointer(&a)).data
	copy(unsafe.Slice((*byte)(p), n), unsafe.Slice((*byte)(value), n))
}

// Set changes argument i, from 0, for later runs. value is a number, or an array
// or struct of numbers, with as many bytes as the one before; or memory, for its
// address (Ptr), which the caller keeps reachable. Set does not allocate.
func (l *Launch) Set(i int, value any) error {
	if l.isZero() {
		return unusable("Set", "the launch", true)
	}
	if i < 0 || i >= len(l.size) {
		return &ArgumentError{l.f.name, -1, fmt.Sprintf("there is no args[%d]: the kernel takes %d", i, len(l.size))}
	}
	t := reflect.TypeOf(value)
	if _, ok := value.(Pointer); ok && !lendsPtr(t) { // to keep it would put every value on the heap
		return l.wrong(i, fmt.Sprintf("%s is memory: pass its Ptr()", t))
	}
	n, err := l.measureNumbers(i, t)
	if err != nil {
		return err
	}
	if n != l.size[i] {
		return l.wrong(i, fmt.Sprintf("%s has %d bytes; the parameter has %d", t, n, l.size[i]))
	}
	store(l.args[i], n, value)
	l.memory[i] = nil
	return nil
}

// Run queues the kernel with its arguments on s, as [Function.Launch] does. It
// refuses memory that was closed meanwhile, unless Set replaced it. It does not
// allocate.
func (l *Launch) Run(s *Stream) error {
	if l.isZero() {
		return unusable("Run", "the launch", true)
	}
	if !l.f.owner.enter() {
		return unusable(l.op, functionOf, false)
	}
	defer runtime.KeepAlive(l)
	defer l.f.owner.leave()
	for i := range l.memory {
		if err := l.checkOpen(i); err != nil {
			return err
		}
	}
	if err := s.launch(l.f.ctx, l.op, l.call); err != nil {
		return l.explain(err)
	}
	return nil
}

// isZero reports whether there is nothing to run: everything of it is [ErrClosed].
func (l *Launch) isZero() bool { return l == nil || l.f == nil }

// Function returns the kernel.
func (l *Launch) Function() *Function {
	if l == nil {
		return nil
	}
	return l.f
}

// call is the driver call.
func (l *Launch) call(call sys.Caller, h sys.CUstream) sys.CUresult {
	g, b, args := l.cfg.Grid, l.cfg.Block, &l.args[0]
	switch {
	case l.ex != nil:
		return l.callExtended(call, h)
	case l.cfg.Cooperative:
		return call.CuLaunchCooperativeKernel(l.f.fn, g.X, g.Y, g.Z, b.X, b.Y, b.Z, l.cfg.Shared, h, args)
	}
	return call.CuLaunchKernel(l.f.fn, g.X, g.Y, g.Z, b.X, b.Y, b.Z, l.cfg.Shared, h, args, nil)
}

func (l *Launch) callExtended(call sys.Caller, h sys.CUstream) sys.CUresult {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ex.HStream = h
	return call.CuLaunchKernelEx(l.ex, l.f.fn, &l.args[0], nil)
}

// choose picks the oldest driver function that can launch this.
func (l *Launch) choose() {
	cfg := l.cfg
	switch {
	case cfg.Priority != 0 || cfg.Cluster != Dim3{}:
		l.op, l.ex = "cuLaunchKernelEx", cfg.extended()
	case cfg.Cooperative:
		l.op = "cuLaunchCooperativeKernel"
	default:
		l.op = "cuLaunchKernel"
	}
}

// extended returns cfg for cuLaunchKernelEx, without the stream.
func (cfg LaunchConfig) extended() *sys.CUlaunchConfig {
	attrs := make([]sys.CUlaunchAttribute, 0, 3)
	add := func(id sys.CUlaunchAttributeID) *sys.CUlaunchAttributeValue {
		attrs = append(attrs, sys.CUlaunchAttribute{Id: id})
		return &attrs[len(attrs)-1].Value
	}
	if cfg.Cooperative {
		*add(sys.CU_LAUNCH_ATTRIBUTE_COOPERATIVE).Cooperative() = 1
	}
	if cfg.Priority != 0 {
		*add(sys.CU_LAUNCH_ATTRIBUTE_PRIORITY).Priority() = int32(min(max(cfg.Priority, math.MinInt32), math.MaxInt32))
	}
	if cfg.Cluster != (Dim3{}) {
		c := cfg.Cluster.c()
		d := add(sys.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION).ClusterDim()
		d.X, d.Y, d.Z = c.X, c.Y, c.Z
	}
	return &sys.CUlaunchConfig{
		GridDimX: cfg.Grid.X, GridDimY: cfg.Grid.Y, GridDimZ: cfg.Grid.Z,
		BlockDimX: cfg.Block.X, BlockDimY: cfg.Block.Y, BlockDimZ: cfg.Block.Z,
		SharedMemBytes: cfg.Shared, Attrs: &attrs[0], NumAttrs: uint32(len(attrs)),
	}
}
