package soft

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseSize(t *testing.T) {
	for s, n := range map[string]uint64{
		"1": 1, "4096": 4096, "3KiB": 3 << 10, "64MiB": 64 << 20, "2GiB": 2 << 30, "2 GiB": 2 << 30,
	} {
		got, err := parseSize(s)
		require.NoError(t, err, s)
		require.Equal(t, n, got, s)
	}
	for _, s := range []string{"", "0", "-1", "1KB", "GiB", "1.5GiB", "9999999999GiB", "99999999999999999999"} {
		_, err := parseSize(s)
		require.Error(t, err, s)
	}
}

// A variable that makes no sense fails cuInit, which does not resolve: the error has the
// variable, its value, and what it may be.
func TestMalformedEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink(t.TempDir(), link))
	open := filepath.Join(t.TempDir(), "open")
	require.NoError(t, os.Mkdir(open, 0o750))
	orphan := filepath.Join(t.TempDir(), "no", "parent")
	const flag, wantDir = "want a number from 0 to 1", "; want a directory of your own with mode 0700"
	for _, c := range []struct{ name, value, want string }{
		{envDevices, "two", "want a number from 0 to 64"},
		{envDevices, "-1", "want a number from 0 to 64"},
		{envDevices, "65", "want a number from 0 to 64"},
		{envMemory, "lots", "want bytes, or a number and KiB, MiB or GiB"},
		{envVersion, "13.0", "want a number from 1000 to 13000"},
		{envVersion, "99999", "want a number from 1000 to 13000"},
		{envPeers, "some", flag},
		{envIPC, "2", flag},
		{envVMM, "no", flag},
		{envIMEX, "yes", flag},
		{envDir, file, "not a directory" + wantDir},
		{envDir, link, "not a directory" + wantDir},
		{envDir, open, "open to others (mode 0750)" + wantDir},
		{envDir, orphan, "mkdir " + orphan + ": no such file or directory" + wantDir},
	} {
		out := output(t, "init", c.name+"="+c.value)
		require.Contains(t, out, fmt.Sprintf("CUDA_ERROR_OPERATING_SYSTEM the software driver cannot start: %s=%q: %s", c.name, c.value, c.want))
	}
	require.Equal(t, `CUDA_ERROR_OPERATING_SYSTEM the software driver cannot start: GPUFD_SOFT_DEVICES="a": want a number from 0 to 64; GPUFD_SOFT_VMM="b": `+flag,
		output(t, "init", envDevices+"=a", envVMM+"=b"), "all of them in one line")
}

// The error has the directory also where no variable names it.
func TestUnusableDefaultDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	dir := filepath.Join(file, fmt.Sprint("gpufd-soft-", os.Geteuid()))
	require.Contains(t, output(t, "init", envDir+"=", envMemory+"=4000000GiB", "TMPDIR="+file),
		fmt.Sprintf("%s is not set and stands for %q: mkdir %s: not a directory", envDir, dir, dir))
}

func TestStoreDir(t *testing.T) {
	t.Setenv(envDir, "some/where")
	dir, err := storeDir(1)
	require.NoError(t, err)
	require.True(t, filepath.IsAbs(dir))
	t.Setenv(envDir, "")
	t.Setenv("TMPDIR", "/nowhere")
	dir, err = storeDir(1 << 62)
	require.NoError(t, err)
	require.Regexp(t, `^/nowhere/gpufd-soft-\d+$`, dir, "/dev/shm is too small for that")
}

// CUDA_VISIBLE_DEVICES chooses and orders.
func TestVisibleDevices(t *testing.T) {
	s := &store{id: [16]byte{1}}
	all := visibleDevices(config{devices: 3}, s)
	uuid := func(i int) string { return "GPU-" + uuidText(all[i].uuid) }
	for visible, ordinals := range map[string][]int{
		"":                      nil,
		"-1":                    nil,
		"0":                     {0},
		"2,0":                   {2, 0},
		" 1 , 2":                {1, 2},
		"1,7,2":                 {1}, // what follows an invalid entry is hidden
		"1,x,2":                 {1},
		"0,0":                   nil,
		uuid(1):                 {1},
		uuid(2)[:12] + ",0":     {2, 0},
		uuid(1) + "," + uuid(0): {1, 0},
		"GPU-":                  nil, // fits all
		"GPU-zz":                nil,
	} {
		var got []int
		for _, d := range visibleDevices(config{devices: 3, visible: &visible}, s) {
			got = append(got, d.ordinal)
		}
		require.Equal(t, ordinals, got, "%q", visible)
	}
}
