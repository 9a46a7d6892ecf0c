// Package handles records what a driver gives out and gets back, from a hook
// around its calls, for tests that must leave nothing behind. It knows calls by
// symbol and argument position, so it also covers functions that no other package
// wraps.
package handles

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/descriptor/fdtrace"
)

// A Table records what was given out and not given back. Handles belong to the
// process, so one table serves all its libraries. The zero Table is empty.
type Table struct {
	mu     sync.Mutex
	serial int
	things map[place][]thing // one for each time it was given out
}

// A place is a kind of thing and its handle, address or number.
type place struct {
	kind kind
	at   uintptr
}

// A thing is something that was given out once.
type thing struct {
	place
	size   uintptr
	inside sys.CUcontext // the context that it ends with, or 0
	is     sys.CUcontext // the context that it is, or 0
	once   bool          // given out any number of times, it counts once
	serial int
	stack  []uintptr
}

// Hook is a [sys.Hook] that keeps the table. It belongs next to the driver,
// inside all hooks that answer instead of the driver.
func (t *Table) Hook(call sys.Call, next func() sys.CUresult) sys.CUresult {
	symbol := call.Symbol()
	if m, ok := makers[symbol]; ok {
		r := next()
		if r == sys.CUDA_SUCCESS {
			t.add(m.thing(call))
		}
		return r
	}
	// The table drops first what is given back: once the driver has it, it may
	// give the same handle to another goroutine.
	taken := t.take(symbol, call)
	r := next()
	if r != sys.CUDA_SUCCESS {
		t.add(taken...)
	}
	return r
}

// thing returns what the call has just given out.
func (m maker) thing(call sys.Call) thing {
	x := thing{place: place{kind: m.kind, at: call.Arg(m.arg)}, once: m.once, stack: fdtrace.Here()}
	if !m.in {
		x.at = call.Out(m.arg)
	}
	if m.size > 0 {
		x.size = call.Arg(m.size)
	}
	if m.ctx {
		x.inside = call.Context()
	}
	if m.kind == ctx || m.kind == primary {
		x.is = sys.CUcontext(call.Out(0))
	}
	return x
}

// add puts things in the table; one that was there before keeps its number.
func (t *Table) add(things ...thing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.things == nil {
		t.things = map[place][]thing{}
	}
	for _, x := range things {
		if x.once && len(t.things[x.place]) > 0 {
			continue
		}
		if x.serial == 0 {
			t.serial++
			x.serial = t.serial
		}
		t.things[x.place] = append(t.things[x.place], x)
	}
}

// take removes what the call gives back, if it gives anything back.
func (t *Table) take(symbol string, call sys.Call) []thing {
	k, ends := enders[symbol]
	if !ends {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch k {
	case mapping:
		return t.takeRange(call.Arg(0), call.Arg(1))
	case contents:
		return t.takeInside(t.things[place{primary, call.Arg(0)}])
	}
	taken := t.takeOne(place{k, call.Arg(0)})
	if k == ctx && symbol != "cuCtxDetach" { // it ends, even if others are attached
		taken = append(taken, t.takeIf(func(x thing) bool { return x.place == place{k, call.Arg(0)} })...)
	}
	if len(taken) > 0 && len(t.things[taken[0].place]) == 0 { // it was the last
		taken = append(taken, t.takeInside(taken)...)
	}
	return taken
}

// takeOne takes the newest thing at p: a reference taken for a while is given
// back before older ones.
func (t *Table) takeOne(p place) []thing {
	all := t.things[p]
	last := len(all) - 1
	switch last {
	case -1:
		return nil
	case 0:
		delete(t.things, p)
	default:
		t.things[p] = all[:last]
	}
	return slices.Clone(all[last:])
}

// takeRange takes the mappings of size bytes at p: one, or several side by
// side.
func (t *Table) takeRange(p, size uintptr) []thing {
	if one := t.things[place{mapping, p}]; len(one) == 1 && one[0].size == size {
		return t.takeOne(one[0].place)
	}
	return t.takeIf(func(x thing) bool { return x.kind == mapping && x.at-p < size })
}

// takeInside takes what ends with the context of, if that is one.
func (t *Table) takeInside(of []thing) []thing {
	if len(of) == 0 || of[0].is == 0 {
		return nil
	}
	return t.takeIf(func(x thing) bool { return x.inside == of[0].is })
}

func (t *Table) takeIf(want func(thing) bool) (taken []thing) {
	for p, all := range t.things {
		if !slices.ContainsFunc(all, want) {
			continue
		}
		delete(t.things, p)
		for _, x := range all {
			if want(x) {
				taken = append(taken, x)
			} else {
				t.things[p] = append(t.things[p], x)
			}
		}
	}
	return taken
}

// Mark returns a mark for Since: now.
func (t *Table) Mark() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.serial
}

// Since describes what was given out after the mark and not given back, the
// oldest first, each with the stack of the call. Since(0) describes everything.
func (t *Table) Since(mark int) (left []string) {
	for _, x := range t.sorted() {
		if x.serial > mark {
			left = append(left, x.String())
		}
	}
	return left
}

// Stack prints the stack of the call that gave out the thing of that kind, in the
// words of a report, at a handle or address. It returns "" if no library with the
// table gave it out.
func (t *Table) Stack(ofKind string, at uintptr) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.things[place{kind(ofKind), at}]
	if len(all) == 0 {
		return ""
	}
	return all[len(all)-1].printStack()
}

func (t *Table) sorted() (all []thing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.things {
		all = append(all, x...)
	}
	slices.SortFunc(all, func(a, b thing) int { return cmp.Compare(a.serial, b.serial) })
	return all
}

// crossing begins the names of the functions that call the driver.
const crossing = "github.com/gpufd/gpufd/cu/sys.Caller.Cu"

// String describes the thing and says where it was made.
func (x thing) String() string {
	text := fmt.Sprintf("%s %#x", x.kind, x.at)
	if x.size > 0 {
		text += fmt.Sprintf(" of %d bytes", x.size)
	}
	return text + " was made at\n" + x.printStack()
}

func (x thing) printStack() string {
	return fdtrace.Print(fdtrace.Past(fdtrace.Frames(x.stack), crossing))
}
