package conformance

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
)

func init() { children["ipc owner"] = ownIPC }

// The results of legacy IPC.
const (
	mapFailed = sys.CUDA_ERROR_MAP_FAILED
	tooMany   = sys.CUDA_ERROR_TOO_MANY_PEERS
	lazy      = uint32(sys.CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
	forIPC    = sys.CU_EVENT_INTERPROCESS | sys.CU_EVENT_DISABLE_TIMING
)

// ipcSize is how much memory an owner shares, and a value that it is full of.
const (
	ipcSize  = 2*unit + 4096
	ipcValue = 90
)

// ownIPC makes memory on every device, two small pieces and an event, prints
// their handles, and does what it is told.
func ownIPC() error {
	cutest.ExpectLeaks() // all that it has goes with it
	t := &childTB{}
	out := bufio.NewWriter(os.Stdout)
	say := func(b [64]byte) { fmt.Fprintln(out, hex.EncodeToString(b[:])) }
	c := inContext(t)
	var mine []sys.CUdeviceptr
	share := func(c sys.Caller, size uintptr) {
		p, h := plain(t, c, size), new(sys.CUipcMemHandle)
		ok(t, c.CuMemsetD8_v2(p, ipcValue, size))
		ok(t, c.CuCtxSynchronize())
		ok(t, c.CuIpcGetMemHandle(h, p))
		mine = append(mine, p)
		say(h.Reserved)
	}
	share(c, ipcSize)
	share(c, 512)
	share(c, 512)
	e, h := event(t, c, forIPC), new(sys.CUipcEventHandle)
	ok(t, c.CuIpcGetEventHandle(h, e))
	say(h.Reserved)
	count := new(int32)
	ok(t, c.CuDeviceGetCount(count))
	for d := sys.CUdevice(1); d < sys.CUdevice(*count); d++ {
		share(inContextOf(t, d), ipcSize)
	}
	for in := bufio.NewScanner(os.Stdin); ; {
		fmt.Fprintln(out, "done")
		if err := out.Flush(); err != nil || !in.Scan() {
			return err
		}
		switch in.Text() {
		case "free":
			ok(t, c.CuMemFree_v2(mine[0]))
		case "again": // memory of the same size, at the same address if the driver likes
			p, h := plain(t, c, ipcSize), new(sys.CUipcMemHandle)
			ok(t, c.CuMemsetD8_v2(p, ipcValue+1, ipcSize))
			ok(t, c.CuIpcGetMemHandle(h, p))
			ok(t, c.CuCtxSynchronize())
			say(h.Reserved)
			fmt.Fprintln(out, p == mine[0])
		case "destroy":
			ok(t, c.CuEventDestroy_v2(e))
		case "record":
			ok(t, c.CuEventRecord(e, 0))
			ok(t, c.CuCtxSynchronize())
		case "stick": // record the event after work that is never done
			s := stream(t, c)
			p := plain(t, c, 4)
			ok(t, c.CuMemsetD8_v2(p, 1, 4))
			ok(t, c.CuCtxSynchronize())
			ok(t, wait32(c, s, p, uint32(sys.CU_STREAM_WAIT_VALUE_EQ)))
			ok(t, c.CuEventRecord(e, s))
		}
	}
}

// An owner is a process that shares memory and an event.
type owner struct {
	*exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	memory  []sys.CUipcMemHandle // of the devices
	small   [2]sys.CUipcMemHandle
	event   sys.CUipcEventHandle
	answers []string // to the last thing that it was told
}

// owned starts an owner.
func owned(t testing.TB, env ...string) *owner {
	t.Helper()
	o := &owner{Cmd: cutest.Child(soon(t), "ipc owner", env...)}
	in, err := o.StdinPipe()
	require.NoError(t, err)
	out, err := o.StdoutPipe()
	require.NoError(t, err)
	o.in, o.out, o.Stderr = in, bufio.NewReader(out), os.Stderr
	require.NoError(t, o.Start())
	t.Cleanup(func() { kill(o.Cmd) })
	o.listen(t)
	first, rest := o.answers[:4], o.answers[4:]
	o.memory = append(o.memory, ipcMemory(t, first[0]))
	o.small = [2]sys.CUipcMemHandle{ipcMemory(t, first[1]), ipcMemory(t, first[2])}
	o.event.Reserved = ipcMemory(t, first[3]).Reserved
	for _, h := range rest {
		o.memory = append(o.memory, ipcMemory(t, h))
	}
	return o
}

func ipcMemory(t testing.TB, text string) (h sys.CUipcMemHandle) {
	_, err := hex.Decode(h.Reserved[:], []byte(text))
	require.NoError(t, err)
	return h
}

// end lets the owner end in good order.
func (o *owner) end(t testing.TB) {
	t.Helper()
	require.NoError(t, o.in.Close())
	require.NoError(t, o.Wait())
}

// tell gives the owner an order.
func (o *owner) tell(t testing.TB, what string) {
	t.Helper()
	_, err := fmt.Fprintln(o.in, what)
	require.NoError(t, err)
	o.listen(t)
}

func (o *owner) listen(t testing.TB) {
	t.Helper()
	o.answers = nil
	for {
		line, err := o.out.ReadString('\n')
		require.NoError(t, err)
		if line == "done\n" {
			return
		}
		o.answers = append(o.answers, strings.TrimSpace(line))
	}
}

// tryOpen opens memory.
func tryOpen(c sys.Caller, h sys.CUipcMemHandle, flags uint32) (sys.CUdeviceptr, sys.CUresult) {
	p := new(sys.CUdeviceptr)
	r := c.CuIpcOpenMemHandle_v2(p, h, flags)
	return *p, r
}

// open opens memory, closed when the test ends.
func open(t testing.TB, c sys.Caller, h sys.CUipcMemHandle) sys.CUdeviceptr {
	t.Helper()
	p, r := tryOpen(c, h, lazy)
	ok(t, r)
	t.Cleanup(func() { ok(t, c.CuIpcCloseMemHandle(p)) })
	return p
}

// refused is the result of an open that is to fail.
func refused(t testing.TB, c sys.Caller, h sys.CUipcMemHandle, flags uint32) sys.CUresult {
	t.Helper()
	p, r := tryOpen(c, h, flags)
	if r == success {
		ok(t, c.CuIpcCloseMemHandle(p))
	}
	return r
}

// onSoft skips n checks of what only the software driver can be made to be.
func onSoft(t testing.TB, n int, why string) bool {
	t.Helper()
	if cutest.Kind() != cu.Soft {
		skip(t, n, why)
		return false
	}
	return true
}

// The results that the documentation of cuIpcOpenMemHandle names, and of
// cudaIpcOpenMemHandle: see docs/ipc.md.

func TestIPCOpenReturns_SUCCESS(t *testing.T) {
	c, o := inContext(t), owned(t)
	p := open(t, c, o.memory[0])
	check(t, "the first byte", ipcValue, byteAt(c, p))
	check(t, "the last", ipcValue, byteAt(c, p+ipcSize-1))
	check(t, "with flags that do not exist beside", success, refused(t, c, o.small[0], lazy|2))
}

func TestIPCOpenReturns_INVALID_VALUE(t *testing.T) {
	c, o := inContext(t), owned(t)
	h := o.memory[0]
	check(t, "zeros", invalid, refused(t, c, sys.CUipcMemHandle{}, lazy))
	garbage := sys.CUipcMemHandle{}
	for i := range garbage.Reserved {
		garbage.Reserved[i] = byte(i*37 + 11)
	}
	check(t, "garbage", invalid, refused(t, c, garbage, lazy))
	check(t, "no flags", invalid, refused(t, c, h, 0))
	check(t, "flags that do not exist", invalid, refused(t, c, h, 2))
	check(t, "nowhere to store the address", invalid, c.CuIpcOpenMemHandle_v2(nil, h, lazy))
	check(t, "an event's handle", invalid, refused(t, c, sys.CUipcMemHandle{Reserved: o.event.Reserved}, lazy))
	o.tell(t, "free")
	check(t, "memory that was freed", invalid, refused(t, c, h, lazy))
}

func TestIPCOpenReturns_INVALID_CONTEXT(t *testing.T) {
	c := inContext(t)
	p, h := plain(t, c, ipcSize), new(sys.CUipcMemHandle)
	ok(t, c.CuIpcGetMemHandle(h, p))
	check(t, "one's own", noContext, refused(t, c, *h, lazy))
	o := owned(t)
	_, r := tryOpen(withoutContext(t), o.memory[0], lazy)
	check(t, "without a current context", noContext, r)
}

func TestIPCOpenReturns_INVALID_HANDLE(t *testing.T) {
	c, o := inContext(t), owned(t)
	other := createdContext(t, 0, 0)
	open(t, c, o.memory[0])
	check(t, "in a second context", noHandle, refused(t, other, o.memory[0], lazy))
	kill(o.Cmd)
	check(t, "memory of a process that was killed", noHandle, refused(t, c, o.small[0], lazy))
	o = owned(t)
	o.end(t)
	check(t, "memory of a process that has ended", noHandle, refused(t, c, o.small[0], lazy))
}

func TestIPCOpenReturns_MAP_FAILED(t *testing.T) {
	if onSoft(t, 1, "they take memory that is there and cannot be mapped") {
		c, o := inContext(t), owned(t)
		files, err := filepath.Glob(filepath.Join(os.Getenv("GPUFD_SOFT_DIR"), fmt.Sprintf("gpu0-%d-*.mem", 2*unit+64*KiB)))
		require.NoError(t, err)
		require.Len(t, files, 1, "of the owner")
		require.NoError(t, os.Remove(files[0]))
		check(t, "memory whose file was removed", mapFailed, refused(t, c, o.memory[0], lazy))
	}
}

// A handle is known by a part of it: an old one may name what is at
// the same place now.
var damagedHandles = alone("damaged handles",
	row{what: "a bit of byte 20 flipped", want: success, ask: func(t testing.TB) any {
		h := owned(t).memory[0]
		h.Reserved[20] ^= 1
		return refused(t, inContext(t), h, lazy)
	}},
	row{what: "each byte", want: true, ask: func(t testing.TB) any {
		c, o := inContext(t), owned(t)
		for i := range 64 {
			h := o.memory[0]
			h.Reserved[i] ^= 1
			fmt.Fprintf(os.Stderr, "byte %d (%#x): %v\n", i, o.memory[0].Reserved[i], refused(t, c, h, lazy))
		}
		return true // all that is asked is that it lives
	}},
)

func TestD16_Damaged(t *testing.T) { damagedHandles.check(t) }

// openAll opens the memory of all devices of an owner and says what came last.
func openAll(t testing.TB) any {
	c, o := inContext(t), owned(t)
	r := success
	for _, h := range o.memory {
		if _, r = tryOpen(c, h, lazy); r != success {
			break
		}
	}
	return r
}

var manyPeers = alone("many peers",
	row{what: "of eight other devices", want: success, env: []string{"GPUFD_SOFT_DEVICES=9"}, ask: openAll},
	row{what: "of nine", want: tooMany, env: []string{"GPUFD_SOFT_DEVICES=10"}, ask: openAll},
)

func TestIPCOpenReturns_TOO_MANY_PEERS(t *testing.T) {
	if onSoft(t, 2, "they take ten devices") {
		manyPeers.check(t)
	}
}

var withoutIPC = alone("no legacy IPC",
	row{what: "open", want: notSupported, env: []string{"GPUFD_SOFT_IPC=0"}, ask: func(t testing.TB) any {
		return refused(t, inContext(t), sys.CUipcMemHandle{}, lazy)
	}},
	row{what: "share", want: notSupported, env: []string{"GPUFD_SOFT_IPC=0"}, ask: func(t testing.TB) any {
		c := inContext(t)
		return c.CuIpcGetMemHandle(new(sys.CUipcMemHandle), plain(t, c, 4096))
	}},
	row{what: "an event", want: notSupported, env: []string{"GPUFD_SOFT_IPC=0"}, ask: func(t testing.TB) any {
		return inContext(t).CuEventCreate(new(sys.CUevent), uint32(forIPC))
	}},
)

// cudaErrorNotSupported.
func TestIPCOpenReturns_NOT_SUPPORTED(t *testing.T) {
	if onSoft(t, 3, "they take a device without legacy IPC") {
		withoutIPC.check(t)
	}
}

var ipcBeforeInit = sheet("legacy IPC before cuInit",
	row{what: "open", want: sys.CUDA_ERROR_NOT_INITIALIZED, ask: func(t testing.TB) any {
		return unopened(t).CuIpcOpenMemHandle_v2(new(sys.CUdeviceptr), sys.CUipcMemHandle{}, lazy)
	}},
)

func TestC20_IPC(t *testing.T) { ipcBeforeInit.check(t) }

// A handle open already is opened in the same place, and counted.
//
//fault:rows 10
func TestD16_Count(t *testing.T) {
	c, o := inContext(t), owned(t)
	a, r := tryOpen(c, o.memory[0], lazy)
	ok(t, r)
	b, r := tryOpen(c, o.memory[0], lazy)
	check(t, "again", success, r)
	check(t, "in the same place", true, a == b)
	check(t, "close once", success, c.CuIpcCloseMemHandle(a))
	check(t, "the other keeps it", ipcValue, byteAt(c, a))
	check(t, "close again", success, c.CuIpcCloseMemHandle(a))
	check(t, "it is gone", invalid, byteAt(c, a))
	check(t, "close once too often", invalid, c.CuIpcCloseMemHandle(a))
}

func TestD16_Share(t *testing.T) {
	c := inContext(t)
	try := func(p sys.CUdeviceptr) (sys.CUipcMemHandle, sys.CUresult) {
		h := new(sys.CUipcMemHandle)
		r := c.CuIpcGetMemHandle(h, p)
		return *h, r
	}
	result := func(p sys.CUdeviceptr) sys.CUresult { _, r := try(p); return r }
	p, virtual := plain(t, c, ipcSize), hole(t)
	h, r := try(p)
	ok(t, r)
	again, _ := try(p)
	check(t, "the same each time", true, h == again)
	inside, r := try(p + 4096)
	check(t, "an address inside", success, r)
	check(t, "is of the same memory", true, h == inside)
	check(t, "memory of cuMemCreate", invalid, result(virtual))
	check(t, "of a pool", invalid, result(pooled(t, c, defaultPool(t), 4096)))
	host, r := pinned(c, 4096, 0)
	ok(t, r)
	check(t, "pinned memory", invalid, result(sys.CUdeviceptr(addressOf(host))))
	check(t, "address 0", invalid, result(0))
	check(t, "a wild address", invalid, result(4096))
	check(t, "nowhere to store it", invalid, c.CuIpcGetMemHandle(nil, p))
}

// The memory as it is where it was opened.
func TestD16_Opened(t *testing.T) {
	c, o := inContext(t), owned(t)
	p := open(t, c, o.memory[0])
	base, n := new(sys.CUdeviceptr), new(uintptr)
	check(t, "the range of an address inside", success, c.CuMemGetAddressRange_v2(base, n, p+100))
	check(t, "begins", true, p == *base)
	check(t, "is as large as was asked for", ipcSize, *n)
	check(t, "its handle", invalid, c.CuIpcGetMemHandle(new(sys.CUipcMemHandle), p))
	check(t, "may be shared", 0, attribute(c, sys.CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p, 4))
	check(t, "type", uint32(sys.CU_MEMORYTYPE_DEVICE), attribute(c, sys.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p, 4))
	check(t, "device", 0, attribute(c, sys.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p, 4))
	check(t, "context", uint64(c.Context()), attribute(c, sys.CU_POINTER_ATTRIBUTE_CONTEXT, p, 8))
	a, r := tryOpen(c, o.small[0], lazy)
	check(t, "a small piece", success, r)
	b, r := tryOpen(c, o.small[1], lazy)
	check(t, "another, perhaps of the same page", success, r)
	check(t, "they are two", true, a != b)
	check(t, "with their bytes", ipcValue, byteAt(c, a))
	check(t, "both", ipcValue, byteAt(c, b))
	check(t, "close the one", success, c.CuIpcCloseMemHandle(a))
	check(t, "the other stays", ipcValue, byteAt(c, b))
	check(t, "close the other", success, c.CuIpcCloseMemHandle(b))
}

var wrongEnds = alone("wrong ends of opened memory",
	asked("close an address inside", invalid, func(t testing.TB, c sys.Caller) any {
		return c.CuIpcCloseMemHandle(open(t, c, owned(t).memory[0]) + 4096)
	}),
	asked("free it", invalid, func(t testing.TB, c sys.Caller) any { return c.CuMemFree_v2(open(t, c, owned(t).memory[0])) }),
	row{what: "close it in another context", want: success, ask: func(t testing.TB) any {
		c := inContext(t)
		p := open(t, c, owned(t).memory[0])
		return createdContext(t, 0, 0).CuIpcCloseMemHandle(p)
	}},
	asked("close what is one's own", invalid, func(t testing.TB, c sys.Caller) any { return c.CuIpcCloseMemHandle(plain(t, c, 4096)) }),
	row{what: "close nothing", want: invalid, ask: func(t testing.TB) any { return inContext(t).CuIpcCloseMemHandle(0) }},
)

func TestD16_WrongEnds(t *testing.T) { wrongEnds.check(t) }

var endsOfOwners = alone("ends of owners", // what CUDA leaves undefined
	row{what: "memory that its owner frees while it is open", want: ipcValue, ask: func(t testing.TB) any {
		c, o := inContext(t), owned(t)
		p := open(t, c, o.memory[0])
		o.tell(t, "free")
		return byteAt(c, p)
	}},
	row{what: "closing it", want: success, ask: func(t testing.TB) any {
		c, o := inContext(t), owned(t)
		p, r := tryOpen(c, o.memory[0], lazy)
		ok(t, r)
		o.tell(t, "free")
		return c.CuIpcCloseMemHandle(p)
	}},
	row{what: "memory whose owner is killed while it is open", want: ipcValue, ask: func(t testing.TB) any {
		c, o := inContext(t), owned(t)
		p := open(t, c, o.memory[0])
		kill(o.Cmd)
		return byteAt(c, p)
	}},
	row{what: "what new memory of the owner holds at the same address", want: ipcValue + 1, ask: func(t testing.TB) any {
		c, o := inContext(t), owned(t)
		old := open(t, c, o.memory[0])
		o.tell(t, "free")
		o.tell(t, "again")
		p := open(t, c, ipcMemory(t, o.answers[0]))
		if p == old {
			return "the new handle leads to the old memory"
		}
		return byteAt(c, p)
	}},
	row{what: "whether its handle is another", want: true, ask: func(t testing.TB) any {
		o := owned(t)
		o.tell(t, "free")
		o.tell(t, "again")
		fmt.Fprintln(os.Stderr, "at the same address:", o.answers[1])
		return ipcMemory(t, o.answers[0]) != o.memory[0]
	}},
	row{what: "what the old handle leads to then", want: ipcValue + 1, ask: func(t testing.TB) any {
		c, o := inContext(t), owned(t)
		o.tell(t, "free")
		o.tell(t, "again")
		if o.answers[1] != "true" {
			return ipcValue + 1 // it is at another address: nothing to ask
		}
		p, r := tryOpen(c, o.memory[0], lazy)
		if r != success {
			return r
		}
		return byteAt(c, p) // not the memory that it was given out for
	}},
	row{what: "a close while a stream uses it", want: success, ask: func(t testing.TB) any {
		c, o := inContext(t), owned(t)
		p, r := tryOpen(c, o.memory[0], lazy)
		ok(t, r)
		s, q := stream(t, c), plain(t, c, ipcSize)
		for range 200 {
			ok(t, c.CuMemcpyDtoDAsync_v2(q, p, ipcSize, s))
		}
		ok(t, c.CuIpcCloseMemHandle(p))
		return c.CuStreamSynchronize(s)
	}},
)

//fault:rows 9
func TestD16_EndsOfOwners(t *testing.T) { endsOfOwners.check(t) }

// Events of other processes.

func tryOpenEvent(t testing.TB, c sys.Caller, h sys.CUipcEventHandle) sys.CUresult {
	t.Helper()
	e := new(sys.CUevent)
	r := c.CuIpcOpenEventHandle(e, h)
	if r == success {
		ok(t, c.CuEventDestroy_v2(*e))
	}
	return r
}

//fault:rows 17
func TestD16_Events(t *testing.T) {
	c, o := inContext(t), owned(t)
	h := new(sys.CUipcEventHandle)
	mine := event(t, c, forIPC)
	check(t, "share one that was not made for it", noHandle, c.CuIpcGetEventHandle(h, event(t, c, sys.CU_EVENT_DISABLE_TIMING)))
	check(t, "nowhere to store it", invalid, c.CuIpcGetEventHandle(nil, mine))
	check(t, "share", success, c.CuIpcGetEventHandle(h, mine))
	check(t, "open one's own", noContext, tryOpenEvent(t, c, *h))
	check(t, "zeros", mapFailed, tryOpenEvent(t, c, sys.CUipcEventHandle{}))
	check(t, "memory's handle", mapFailed, tryOpenEvent(t, c, sys.CUipcEventHandle{Reserved: o.memory[0].Reserved}))
	check(t, "open for nothing", invalid, c.CuIpcOpenEventHandle(nil, o.event))

	e := new(sys.CUevent)
	check(t, "open", success, c.CuIpcOpenEventHandle(e, o.event))
	check(t, "share an opened one", noHandle, c.CuIpcGetEventHandle(h, *e))
	check(t, "query what was never recorded", success, c.CuEventQuery(*e))
	o.tell(t, "record")
	check(t, "query", success, c.CuEventQuery(*e))
	check(t, "wait", success, c.CuEventSynchronize(*e))
	check(t, "record in the other process", success, c.CuEventRecord(*e, 0))
	check(t, "wait for that", success, c.CuEventSynchronize(*e))
	_, r := elapsed(c, *e, *e)
	check(t, "the time", noHandle, r)
	check(t, "destroy", success, c.CuEventDestroy_v2(*e))
	check(t, "open again", success, tryOpenEvent(t, c, o.event))
	o.tell(t, "destroy")
	check(t, "open one that was destroyed", success, tryOpenEvent(t, c, o.event))
	kill(o.Cmd)
	check(t, "whose owner was killed", success, tryOpenEvent(t, c, o.event))
}

// Effects of an owner that has ended, which nobody promises.
//
//fault:rows 17
func TestD16_EventsLeftBehind(t *testing.T) {
	c, o := inContext(t), owned(t)
	e := new(sys.CUevent)
	o.tell(t, "destroy")
	ok(t, c.CuIpcOpenEventHandle(e, o.event))
	check(t, "query one that was destroyed", success, c.CuEventQuery(*e))
	ok(t, c.CuEventDestroy_v2(*e))
	o = owned(t)
	o.tell(t, "stick")
	kill(o.Cmd)
	ok(t, c.CuIpcOpenEventHandle(e, o.event))
	check(t, "query a record whose process was killed before", sys.CUDA_ERROR_NOT_READY, c.CuEventQuery(*e))
	ok(t, c.CuEventDestroy_v2(*e))
	o = owned(t)
	o.end(t)
	check(t, "open one whose owner has ended", success, tryOpenEvent(t, c, o.event))
}

// stuck is a stream that waits for a record which its process will not live to
// finish.
func stuck(t testing.TB) (sys.Caller, sys.CUevent, sys.CUstream) {
	c, o := inContext(t), owned(t)
	e := new(sys.CUevent)
	ok(t, c.CuIpcOpenEventHandle(e, o.event))
	o.tell(t, "stick")
	s := stream(t, c)
	ok(t, c.CuStreamWaitEvent(s, *e, 0))
	kill(o.Cmd)
	return c, *e, s
}

var stuckEvents = alone("stuck events",
	row{what: "query a record whose process was killed", want: sys.CUDA_ERROR_NOT_READY, ask: func(t testing.TB) any {
		c, e, _ := stuck(t)
		return c.CuEventQuery(e)
	}},
	row{what: "waiting for a record whose process was killed", want: hangs, ask: func(t testing.TB) any {
		c, _, s := stuck(t)
		return within(hanging, func() sys.CUresult { return c.CuStreamSynchronize(s) })
	}},
	row{what: "after a record of one's own", want: hangs, ask: func(t testing.TB) any {
		c, e, s := stuck(t)
		ok(t, c.CuEventRecord(e, stream(t, c)))
		return within(hanging, func() sys.CUresult { return c.CuStreamSynchronize(s) })
	}},
)

//fault:rows 18
func TestD20b_StuckEvents(t *testing.T) { stuckEvents.check(t) }
