package gpufd

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

// The rows are for people, or an object a line; the exit code is the worst one's.
func TestDoctor(t *testing.T) {
	t.Parallel()
	own := filepath.Join(t.TempDir(), "soft") // memory of other tests is none of this one's
	u := newUser(t, "XDG_RUNTIME_DIR=", "GPUFD_SOCKET=", "GPUFD_SOFT_DEVICES=1", "GPUFD_SOFT_DIR="+own)
	out := u.does("doctor")
	require.Regexp(t, `(?m)^OK      memory-fd GPU-[0-9a-f-]+: 2 MiB were created, exported, imported by another process`, out)
	require.Regexp(t, `(?m)^WARN    imex-channel GPU-.+\n        why: .+ \(imex-channel\)\n        do:  ask an administrator`, out)
	require.Regexp(t, `(?m)^\d+ OK, 1 WARN, 0 FAIL, \d UNKNOWN; docs/doctor.md`, out)

	var last struct {
		Event      string
		OK         bool
		Rows, Warn int
	}
	statuses := map[string]int{}
	s := bufio.NewScanner(strings.NewReader(u.does("doctor", "--json")))
	for s.Scan() {
		var row struct{ ID, Status, Seen, Why, Cause, Do string }
		require.NoError(t, json.Unmarshal(s.Bytes(), &row))
		require.NoError(t, json.Unmarshal(s.Bytes(), &last))
		if last.Event != "" {
			continue
		}
		require.NotEmpty(t, row.ID+row.Seen)
		require.NotEmpty(t, row.Why, row.ID)
		require.Equal(t, row.Status == "WARN" || row.Status == "FAIL", row.Cause != "" && row.Do != "", row.ID)
		statuses[row.Status]++
	}
	require.True(t, last.OK)
	require.Equal(t, statuses["OK"]+statuses["WARN"]+statuses["UNKNOWN"], last.Rows)
	require.Equal(t, 1, last.Warn)

	broken := newUser(t, "CUDA_VISIBLE_DEVICES=9")
	broken.fails(3, "checks failed: ", "doctor", "--driver", "soft")
	u.fails(1, "1 of 1 checks failed: peer", "doctor", "--with", filepath.Join(u.dir, "none"))
}

// Doctor looks at the directory in which the containers of a claim meet, as keeper and clients do.
func TestDoctorOfAClaim(t *testing.T) {
	t.Parallel()
	u := newUser(t, "GPUFD_SOCKET=", "GPUFD_SOFT_DEVICES=1")
	u.env = append(u.env, "NVIDIA_DRA_LOCAL_IPC_DIR="+u.dir)
	own := filepath.Join(u.dir, "gpufd")
	require.Contains(t, u.does("doctor"), "OK      socket: a socket in "+own+" was listened at and connected to")
	require.NoDirExists(t, own)
	u.keeper()
	require.Contains(t, u.does("doctor"), "OK      socket: the default socket, "+own+"/keeper.sock, was connected to")
}

// One doctor offers, another takes; and a producer that is none is not attached to.
func TestDoctorWith(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	path := filepath.Join(u.dir, "d")
	other := u.start("doctor", "--offer", path)
	line := ok(other.lines.ReadString('\n'))(t)
	require.Contains(t, line, "Offering 2 MiB at ")
	out := u.does("doctor", "--with", path)
	require.Contains(t, out, "OK      memory-with: 2097152 bytes were attached to and verified")
	require.Contains(t, out, "9 OK, 0 WARN, 0 FAIL, 0 UNKNOWN")
	require.Contains(t, u.does("doctor", "--with", fmt.Sprint(other.Process.Pid)), "6 OK, 0 WARN, 0 FAIL, 1 UNKNOWN")
	u.fails(1, "memory-with", "doctor", "--with", path, "--attach", "weights")

	u.keeper()
	u.write("w", data(3<<20, 1))
	u.does("put", "w", "w")
	keeper := filepath.Join(u.dir, "s")
	out = u.does("doctor", "--with", keeper)
	require.Contains(t, out, "UNKNOWN memory-with: it offers w")
	require.Regexp(t, `(?m)^OK      pid-equal: \d+ and \d+, in one PID namespace\n(.*\n)+OK      devices-common: it offers memory of GPU-`, out)
	require.Contains(t, u.does("doctor", "--with", keeper, "--attach", "w"), "OK      memory-with: 2097152 bytes were attached to and read")
}

// scripts/doctor-runs.sh finds in each of its runs the causes that it expects, and no others.
func TestDoctorRuns(t *testing.T) {
	t.Parallel()
	if cutest.Emulated() {
		t.Skip("its containers take programs of this machine")
	}
	cutest.Namespaced(t)
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "../../../scripts/doctor-runs.sh", filepath.Dir(gpufd))
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "GPUFD_DRIVER=soft", "GPUFD_SOFT_DEVICES=2", "GPUFD_SOCKET=", "GPUFD_SOFT_IMEX=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, 6, strings.Count(string(out), "\n### "), "%s", out)
	processes := ok(filepath.Glob("/proc/[1-9]*/cmdline"))(t)
	for _, p := range processes {
		command, _ := os.ReadFile(p)
		require.NotContains(t, string(command), dir, "a process is left")
	}
}

// The meaning of an error comes from the table of the library's hints.
func TestDoctorExplains(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	for text, want := range map[string]string{
		"201":                         "pid-equal: both processes have the same number",
		"CUDA_ERROR_INVALID_CONTEXT":  "hint: cuIpcOpenMemHandle: the handle is of this very process",
		"received 0 items of ancdata": "fd-limit: ",
		"wsl2 has none: cudaIpcGetMemHandle: operation not supported": "legacy-unsupported: ",
		"confidential computing": "        not tried: ",
		"wsl2":                   "        not tried: ",
		"gVisor":                 "        not tried: no machine of the tests runs it",
		"bind: invalid argument": "EINVAL (22), invalid argument: an error of the system, not a result of the driver\nThis is not about sharing memory",
		"HTTP 400":               "a status of HTTP\nThis is not about sharing memory",
		"500":                    "CUDA_ERROR_NOT_FOUND (500): named symbol not found\nThis is not about sharing memory",
	} {
		require.Contains(t, u.does("doctor", text), want)
	}
	require.Contains(t, u.does("doctor", "--json", "802"), `"id":"system-not-ready"`)
	u.fails(1, `"all is well" is not known as an error of sharing memory`, "doctor", "all", "is", "well")
}

// Flags that do not go together, and what is there and empty, are wrong usage; what it quotes is
// cut.
func TestDoctorUsage(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	for _, c := range []struct {
		want string
		args []string
	}{
		{"only one of", []string{"--with", "1", "--offer", "s"}},
		{"only one of", []string{"--offer", "s", "201"}},
		{"got an empty one", []string{"--with", ""}},
		{"got an empty one", []string{"--offer", ""}},
		{"got an empty one", []string{" "}},
		{"--as and --attach want --with", []string{"--as", "1"}},
		{"--as and --attach want --with", []string{"--attach", "w"}},
		{"--allow-uid wants --with or --offer", []string{"--allow-uid", "1"}},
		{"want numbers below", []string{"--allow-uid", "4294967296", "--with", "s"}},
		{`--as "x": want the number of a process`, []string{"--as", "x", "--with", "s"}},
		{"--attach wants the name of an offer, and --with a socket", []string{"--attach", "w", "--with", "1"}},
	} {
		u.fails(2, c.want, append([]string{"doctor"}, c.args...)...)
	}
	code, _, errs := u.run("doctor", strings.Repeat("x", 10_000))
	require.Equal(t, 1, code)
	require.Less(t, len(errs), 400, "%s", errs)
	u.fails(1, "checks failed: peer", "doctor", "--with", "0")
	u.fails(1, "checks failed: peer", "doctor", "--with", u.dir+"/.")
}
