package sys

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// A Resolver returns the address of the C function with that exact symbol. It
// must not panic, and may be called from several goroutines at once.
type Resolver func(symbol string) (address uintptr, err error)

// missing is the address of a symbol that the resolver does not have.
const missing = 1

// A Library is an opened driver: a resolver and the addresses found so far. Each
// symbol is resolved on first use. It is safe for concurrent use and is never
// closed, as libcuda cannot be unloaded.
type Library struct {
	resolve Resolver
	hook    atomic.Pointer[Hook]
	addr    [numFunctions]uintptr // atomic; the methods of atomic.Uintptr keep address from being inlined
}

// NewLibrary returns the driver whose functions r finds. It calls and resolves
// nothing yet.
func NewLibrary(r Resolver) *Library { return &Library{resolve: r} }

// Caller returns the library's functions without a context.
func (l *Library) Caller() Caller { return Caller{lib: l} }

// Lookup returns the address of symbol, of this ABI or not, or the resolver's
// error.
func (l *Library) Lookup(symbol string) (uintptr, error) {
	addr, err := l.resolve(symbol)
	if err == nil && addr == 0 {
		err = fmt.Errorf("symbol %s resolved to the address 0", symbol)
	}
	return addr, err
}

// Has reports whether the driver exports symbol.
func (l *Library) Has(symbol string) bool {
	_, err := l.Lookup(symbol)
	return err == nil
}

// SetHook puts h around every call from now on; nil takes the hook away.
func (l *Library) SetHook(h Hook) {
	if h == nil {
		l.hook.Store(nil)
		return
	}
	l.hook.Store(&h)
}

// address returns the address of a function, or missing. Every call looks up two.
func (l *Library) address(id funcID) uintptr {
	if a := atomic.LoadUintptr(&l.addr[id]); a != 0 {
		return a
	}
	return l.find(id)
}

// find asks the resolver.
func (l *Library) find(id funcID) uintptr {
	a, err := l.Lookup(functions[id].symbol)
	if err != nil {
		a = missing
	}
	atomic.StoreUintptr(&l.addr[id], a)
	return a
}

type funcID int

// A function is what the ABI file knows of a driver function.
type function struct {
	symbol string
	since  int
	kinds  string
}

// symbols has each symbol's function.
var symbols = sync.OnceValue(func() map[string]funcID {
	m := make(map[string]funcID, numFunctions)
	for id, f := range functions {
		m[f.symbol] = funcID(id)
	}
	return m
})

// Since returns the CUDA version that introduced symbol (12030 is 12.3), or 0 if
// the header does not say; ok is false if this ABI has no such symbol.
func Since(symbol string) (version int, ok bool) {
	id, ok := symbols()[symbol]
	if !ok {
		return 0, false
	}
	return functions[id].since, true
}

// Symbols returns every symbol of the ABI: the functions of CUDA 13.0 first,
// then the older ABIs.
func Symbols() []string {
	s := make([]string, numFunctions)
	for id, f := range functions {
		s[id] = f.symbol
	}
	return s
}

// Version spells a CUDA version number: 12030 is "12.3".
func Version(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
