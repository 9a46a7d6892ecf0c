package sys

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/ebitengine/purego"
)

// A LibraryError says that libcuda could not be opened, and what was tried.
type LibraryError struct {
	Tried []string // one "path: reason" for each place
	Found bool     // there is a libcuda for this machine, but it cannot be loaded
}

// Error names every place that was tried.
func (e *LibraryError) Error() string {
	why := "the NVIDIA driver is not installed, or not visible to this process"
	if e.Found {
		why = "it is there but cannot be loaded"
	}
	return "libcuda could not be opened: " + why + ". Tried:\n  " + strings.Join(e.Tried, "\n  ")
}

// OpenCUDA opens libcuda.so.1 where the dynamic linker finds it, else in the
// usual places for this architecture, including those of WSL and containers. It
// returns the resolver and the name that opened. The error is a [*LibraryError].
// The library stays open: see dlopen(3).
func OpenCUDA() (r Resolver, name string, err error) { return open(candidates()) }

// CUDAPaths lists the paths where [OpenCUDA] looks for libcuda after the dynamic
// linker's.
func CUDAPaths() []string { return candidates()[1:] }

// OpenFile opens the library at path as [OpenCUDA] does.
func OpenFile(path string) (Resolver, error) {
	r, _, err := open([]string{path})
	return r, err
}

func open(names []string) (Resolver, string, error) {
	var e LibraryError
	for _, name := range names {
		handle, err := dlopen(name)
		if err != nil {
			e.Tried = append(e.Tried, reason(name, err))
			e.Found = e.Found || !notThere(name, err)
			continue
		}
		return func(symbol string) (uintptr, error) { return purego.Dlsym(handle, symbol) }, name, nil
	}
	return nil, "", &e
}

// dlopen stays on its thread because that keeps the reason for a failure
// (dlerror(3)).
func dlopen(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

// notThere tells a library that is missing, or of another architecture, from one
// that cannot be loaded. dlopen has only words for that; if the library needs
// another one, they begin with the other's name.
func notThere(name string, err error) bool {
	rest, ok := strings.CutPrefix(err.Error(), name+": ")
	return ok && rest == "cannot open shared object file: No such file or directory" ||
		strings.Contains(rest, "wrong ELF class")
}

// reason is dlopen's own message, which mostly starts with the name already.
func reason(name string, err error) string {
	if strings.HasPrefix(err.Error(), name) {
		return err.Error()
	}
	return fmt.Sprintf("%s: %v", name, err)
}

// candidates lists what OpenCUDA tries, in order.
func candidates() []string {
	multiarch := map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}[runtime.GOARCH]
	names := []string{"libcuda.so.1"}
	for _, dir := range []string{
		"/usr/lib/" + multiarch,
		"/usr/lib64",
		"/usr/lib",
		"/usr/lib/wsl/lib",                          // WSL
		"/usr/local/nvidia/lib64",                   // containers of older runtimes and Kubernetes
		"/run/opengl-driver/lib",                    // NixOS
		"/usr/lib/" + multiarch + "/nvidia/current", // Debian's packages
		"/usr/lib/" + multiarch + "/tegra",          // Jetson
		"/usr/local/cuda/compat",                    // forward compatibility
	} {
		names = append(names, filepath.Join(dir, "libcuda.so.1"))
	}
	return names
}
