package doctor

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/advice"
	"github.com/gpufd/gpufd/internal/cli"
)

// oldest is the oldest CUDA version that this library works with.
const oldest = 11040

// drivers reports whether both processes have opened a driver.
func (v *run) drivers() []Row {
	says := v.owner.says
	for _, p := range []*probe{v.owner, v.reader} {
		if p.err != nil {
			return []Row{v.noDriver(p.err)}
		}
	}
	rows := []Row{row("driver", OK, "", "%s, with %s, in two processes", says.Driver, cli.Count(len(says.Devices), "device"))}
	if says.Version < oldest {
		rows[0] = row("driver", Warn, "libcuda-version", "%s: older than CUDA %s", says.Driver, sys.Version(oldest))
	}
	if says.Kind == cu.Soft && v.Driver != "soft" {
		rows[0] = row("driver", Warn, softCause(says.Driver), "%s: no GPU is used", says.Driver)
	}
	return rows
}

// noDriver says why no driver opens. If the row of /dev/shm has failed, too, that may be the
// cause.
func (v *run) noDriver(f *fault) Row {
	broken := slices.ContainsFunc(v.rows, func(r Row) bool { return r.ID == "shm" && r.Status == Fail })
	if f.Mark == "" && broken {
		f.Mark = oneOf(advice.Read(f.Text), "shm")
	}
	return failed("driver", Fail, f, facts{})
}

// softCause returns why the software driver was taken, from what it says.
func softCause(says string) string {
	if strings.Contains(says, "not installed") {
		return "no-libcuda"
	}
	return "visible-devices"
}

// libcuda looks for libraries besides the one that was opened.
func (v *run) libcuda() []Row {
	if v.owner.says.Kind == cu.Soft {
		return []Row{row("libcuda", Unknown, "", "the software driver is used, so libcuda was not tried")}
	}
	return []Row{judgeLibraries(v.owner.says.Driver, libraries(libraryDirs()), moduleVersion())}
}

// judgeLibraries checks that there is one libcuda, of the kernel module's version.
func judgeLibraries(driver string, found map[string]string, module string) Row {
	var versions []string
	mismatch := ""
	for path, version := range found {
		versions = append(versions, path+" ("+version+")")
		if module != "" && version != "" && version != module {
			mismatch = path
		}
	}
	slices.Sort(versions)
	switch {
	case len(found) > 1:
		return row("libcuda", Warn, "libcuda-duplicates", "there are several: %s; the kernel module has version %q", strings.Join(versions, ", "), module)
	case mismatch != "":
		return row("libcuda", Warn, "driver-mismatch", "%s has another version than the kernel module, %s", mismatch, module)
	}
	return row("libcuda", OK, "", "%s was opened; found: %s; the kernel module has version %q", driver, list(versions), module)
}

// libraryDirs are the directories in which a process finds libcuda.
func libraryDirs() []string {
	dirs := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	for _, path := range sys.CUDAPaths() {
		dirs = append(dirs, filepath.Dir(path))
	}
	return dirs
}

// libraries finds files of libcuda, each once, with the versions in their names.
func libraries(dirs []string) map[string]string {
	found := map[string]string{}
	for _, dir := range dirs {
		path, err := filepath.EvalSymlinks(filepath.Join(dir, "libcuda.so.1"))
		if err == nil {
			_, version, _ := strings.Cut(filepath.Base(path), "libcuda.so.")
			if version == "1" {
				version = "" // no link
			}
			found[path] = version
		}
	}
	return found
}

// moduleVersion is the version of the kernel module, or "".
func moduleVersion() string {
	b, _ := os.ReadFile("/sys/module/nvidia/version")
	return strings.TrimSpace(string(b))
}

// visible compares CUDA_VISIBLE_DEVICES with the devices that are seen.
func (v *run) visible() Row {
	n := len(v.owner.says.Devices)
	seen := "seen: " + cli.Count(n, "device")
	value, set := os.LookupEnv("CUDA_VISIBLE_DEVICES")
	switch {
	case n == 0:
		return row("visible-devices", Fail, "", "no device is seen; CUDA_VISIBLE_DEVICES=%q (set: %t)", value, set)
	case !set:
		return row("visible-devices", OK, "", "%s: CUDA_VISIBLE_DEVICES is not set", seen)
	case len(strings.Split(value, ",")) > n:
		return row("visible-devices", Warn, "", "CUDA_VISIBLE_DEVICES=%q names more devices than the %d that are seen: the first one that is not there hides all after it", value, n)
	}
	return row("visible-devices", OK, "", "%s with CUDA_VISIBLE_DEVICES=%q; a peer must see the same", seen, value)
}

// signs returns rows for what doctor can see but cannot try.
func signs(says answer) (rows []Row) {
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	if strings.Contains(strings.ToLower(string(release)), "microsoft") {
		rows = append(rows, row("wsl2", Unknown, "", "the kernel is %s: not tried", strings.TrimSpace(string(release))))
	}
	if musl, _ := filepath.Glob("/lib/ld-musl-*"); len(musl) > 0 {
		rows = append(rows, row("musl", Unknown, "", "there is %s: not tried", musl[0]))
	}
	for _, dev := range says.Devices {
		if dev.MIG {
			r := row("mig", Unknown, "", "%s is a MIG instance: not tried", dev.Name)
			r.Device = dev.UUID.String()
			rows = append(rows, r)
		}
		if dev.Mode != "" && dev.Mode != cu.ComputeModeDefault.String() {
			r := row("compute-mode", Warn, "", "the compute mode is %s", dev.Mode)
			r.Device = dev.UUID.String()
			rows = append(rows, r)
		}
	}
	return rows
}
