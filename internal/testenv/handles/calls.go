package handles

// A kind is a kind of thing that the driver gives out and wants back, in the
// words of a report.
type kind string

const (
	array    kind = "array"
	ctx      kind = "context"
	event    kind = "event"
	exec     kind = "executable graph"
	external kind = "external memory"
	graph    kind = "graph"
	ipc      kind = "memory of another process"
	library  kind = "library"
	linear   kind = "device memory"
	mapping  kind = "mapping"
	module   kind = "module"
	physical kind = "physical memory"
	pinned   kind = "pinned memory"
	pool     kind = "memory pool"
	primary  kind = "reference to the primary context of device"
	register kind = "registered memory"
	contents kind = "contents of a primary context"
	reserved kind = "reserved address space"
	stream   kind = "stream"
)

// A maker is a call that gives something out. Arguments count from 0.
type maker struct {
	kind kind
	arg  int  // points to where the driver stores the handle or address
	in   bool // arg itself is the thing
	size int  // the argument that is its size in bytes, or 0
	ctx  bool // it ends with the context that it was made in
	once bool // given out several times, it is given back once
}

var makers = map[string]maker{
	"cuArray3DCreate_v2":                 {kind: array, ctx: true},
	"cuArrayCreate_v2":                   {kind: array, ctx: true},
	"cuCtxAttach":                        {kind: ctx},
	"cuCtxCreate":                        {kind: ctx},
	"cuCtxCreate_v2":                     {kind: ctx},
	"cuCtxCreate_v3":                     {kind: ctx},
	"cuCtxCreate_v4":                     {kind: ctx},
	"cuDevicePrimaryCtxRetain":           {kind: primary, arg: 1, in: true},
	"cuEventCreate":                      {kind: event, ctx: true},
	"cuExternalMemoryGetMappedBuffer":    {kind: linear, ctx: true},
	"cuGraphClone":                       {kind: graph},
	"cuGraphCreate":                      {kind: graph},
	"cuGraphInstantiate":                 {kind: exec},
	"cuGraphInstantiateWithFlags":        {kind: exec},
	"cuGraphInstantiateWithParams":       {kind: exec},
	"cuGraphInstantiate_v2":              {kind: exec},
	"cuImportExternalMemory":             {kind: external, ctx: true},
	"cuIpcOpenEventHandle":               {kind: event, ctx: true},
	"cuIpcOpenMemHandle":                 {kind: ipc, ctx: true},
	"cuIpcOpenMemHandle_v2":              {kind: ipc, ctx: true},
	"cuLibraryLoadData":                  {kind: library},
	"cuLibraryLoadFromFile":              {kind: library},
	"cuMemAddressReserve":                {kind: reserved, size: 1},
	"cuMemAllocAsync":                    {kind: linear, size: 1},
	"cuMemAllocFromPoolAsync":            {kind: linear, size: 1},
	"cuMemAllocHost":                     {kind: pinned, size: 1, ctx: true},
	"cuMemAllocHost_v2":                  {kind: pinned, size: 1, ctx: true},
	"cuMemAllocManaged":                  {kind: linear, size: 1, ctx: true},
	"cuMemAllocPitch_v2":                 {kind: linear, ctx: true},
	"cuMemAlloc_v2":                      {kind: linear, size: 1, ctx: true},
	"cuMemCreate":                        {kind: physical, size: 1},
	"cuMemHostAlloc":                     {kind: pinned, size: 1, ctx: true},
	"cuMemHostRegister":                  {kind: register, in: true, size: 1, ctx: true},
	"cuMemHostRegister_v2":               {kind: register, in: true, size: 1, ctx: true},
	"cuMemImportFromShareableHandle":     {kind: physical},
	"cuMemMap":                           {kind: mapping, in: true, size: 1},
	"cuMemPoolCreate":                    {kind: pool},
	"cuMemPoolImportFromShareableHandle": {kind: pool},
	"cuMemPoolImportPointer":             {kind: linear, once: true},
	"cuMemRetainAllocationHandle":        {kind: physical},
	"cuModuleLoad":                       {kind: module, ctx: true},
	"cuModuleLoadData":                   {kind: module, ctx: true},
	"cuModuleLoadDataEx":                 {kind: module, ctx: true},
	"cuModuleLoadFatBinary":              {kind: module, ctx: true},
	"cuMulticastCreate":                  {kind: physical},
	"cuStreamCreate":                     {kind: stream, ctx: true},
	"cuStreamCreateWithPriority":         {kind: stream, ctx: true},
	"cuStreamEndCapture":                 {kind: graph, arg: 1},
}

// enders are the calls that give back the thing in their first argument.
// cuMemUnmap gives back all things in a range, and a reset those in a context.
var enders = map[string]kind{
	"cuArrayDestroy":               array,
	"cuCtxDestroy":                 ctx,
	"cuCtxDestroy_v2":              ctx,
	"cuCtxDetach":                  ctx,
	"cuDestroyExternalMemory":      external,
	"cuDevicePrimaryCtxRelease":    primary,
	"cuDevicePrimaryCtxRelease_v2": primary,
	"cuDevicePrimaryCtxReset":      contents,
	"cuDevicePrimaryCtxReset_v2":   contents,
	"cuEventDestroy":               event,
	"cuEventDestroy_v2":            event,
	"cuGraphDestroy":               graph,
	"cuGraphExecDestroy":           exec,
	"cuIpcCloseMemHandle":          ipc,
	"cuLibraryUnload":              library,
	"cuMemAddressFree":             reserved,
	"cuMemFreeAsync":               linear,
	"cuMemFreeHost":                pinned,
	"cuMemFree_v2":                 linear,
	"cuMemHostUnregister":          register,
	"cuMemPoolDestroy":             pool,
	"cuMemRelease":                 physical,
	"cuMemUnmap":                   mapping,
	"cuModuleUnload":               module,
	"cuStreamDestroy":              stream,
	"cuStreamDestroy_v2":           stream,
}
