package app

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/sock"
)

// someIDs is a list of which "ann" is 7 and "huge" beyond 32 bits.
func someIDs(ids *[]uint32) idList {
	return idList{ids, func(name string) (string, error) {
		switch name {
		case "ann":
			return "7", nil
		case "huge":
			return "4294967296", nil
		}
		return "", fmt.Errorf("unknown user %s", name)
	}}
}

func TestIDsAreRead(t *testing.T) {
	for text, want := range map[string][]uint32{
		"0": {0}, "1000": {1000}, "1,2,3": {1, 2, 3}, "ann": {7}, "3,ann,0": {3, 7, 0}, "4294967294": {math.MaxUint32 - 1}, "007": {7}, "5,5": {5, 5},
	} {
		var ids []uint32
		require.NoError(t, someIDs(&ids).Set(text), text)
		require.Equal(t, want, ids, text)
	}
}

func TestIDsAddUp(t *testing.T) {
	var ids []uint32
	l := someIDs(&ids)
	require.Empty(t, l.String())
	require.NoError(t, l.Set("1,ann"))
	require.NoError(t, l.Set("2"))
	require.Equal(t, "1,7,2", l.String())
}

func TestBadIDsAreUsage(t *testing.T) {
	for text, want := range map[string]string{
		"": "numbers or names", ",": "numbers or names", "1,": "numbers or names", "1,,2": "numbers or names", ",1": "numbers or names",
		"bob": "unknown user bob", "ann,bob": "unknown user bob", "-1": "unknown user -1", "+1": "unknown user +1", "1.5": "unknown user 1.5",
		"0x10": "unknown user 0x10", "1 2": "unknown user 1 2", " 1": "unknown user  1", "١": "unknown user",
		"4294967295": "below 2^32-1", "4294967296": "below 2^32-1", "99999999999999999999": "below 2^32-1", "huge": "below 2^32-1",
	} {
		ids := []uint32{5}
		require.ErrorContains(t, someIDs(&ids).Set(text), want, "%q", text)
		require.Equal(t, []uint32{5}, ids, "unchanged by %q", text)
	}
}

// Names are those of the system: root is 0 wherever there is a list of users.
func TestNamesOfTheSystem(t *testing.T) {
	app := New("x", "is a test.", io.Discard)
	var p PolicyFlags
	app.AllowFlags(&p, "`U`", "`G`")
	require.Error(t, app.Flags.Parse([]string{"--allow-uid", "no such user"}))
	require.Error(t, app.Flags.Parse([]string{"--allow-gid", "no such group"}))
	require.NoError(t, app.Flags.Parse([]string{"--allow-uid", "1", "--allow-uid", "2", "--allow-gid", "3,4"}))
	require.Equal(t, sock.Policy{UIDs: []uint32{1, 2}, GIDs: []uint32{3, 4}}, p.Policy())
	if id, err := userID("root"); err == nil {
		require.Equal(t, "0", id)
	}
	if id, err := groupID("root"); err == nil {
		require.Equal(t, "0", id)
	}
}

// A socket is open to no more than have to connect.
func TestModesForOthers(t *testing.T) {
	for _, c := range []struct {
		flags PolicyFlags
		mode  os.FileMode
		gid   uint32
	}{
		{PolicyFlags{}, 0o600, uint32(os.Getegid())},
		{PolicyFlags{UIDs: []uint32{1}}, 0o666, uint32(os.Getegid())},
		{PolicyFlags{UIDs: []uint32{1}, GIDs: []uint32{2}}, 0o666, uint32(os.Getegid())},
		{PolicyFlags{GIDs: []uint32{2, 3}}, 0o666, uint32(os.Getegid())},
		{PolicyFlags{GIDs: []uint32{12345}}, 0o660, 12345},
	} {
		path := filepath.Join(t.TempDir(), "s")
		require.NoError(t, os.WriteFile(path, nil, c.flags.Mode()))
		require.NoError(t, os.Chmod(path, c.flags.Mode()))
		require.NoError(t, c.flags.Open(path))
		info, err := os.Stat(path)
		require.NoError(t, err)
		gid := info.Sys().(*syscall.Stat_t).Gid
		if c.gid == 12345 && os.Geteuid() != 0 { // who may not give it away lets everybody connect
			c.mode, c.gid = 0o666, gid
		}
		require.Equal(t, c.mode, info.Mode().Perm(), "%v", c.flags)
		require.Equal(t, c.gid, gid)
	}
	require.Error(t, (&PolicyFlags{GIDs: []uint32{1}}).Open(filepath.Join(t.TempDir(), "none")))
}

func TestShutDirectories(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	for mode, shut := range map[os.FileMode]bool{0o700: true, 0o744: true, 0o711: false, 0o710: false, 0o755: false} {
		require.NoError(t, os.Chmod(dir, mode))
		for _, flags := range []PolicyFlags{{UIDs: []uint32{1}}, {GIDs: []uint32{1}}} {
			why := flags.Shut(path)
			require.Equal(t, shut, why != "", "%v %o", flags, mode)
			if shut {
				require.Contains(t, why, "chmod 0711 "+dir)
			}
		}
		require.Empty(t, (&PolicyFlags{}).Shut(path), "nobody is let in")
	}
	require.Empty(t, (&PolicyFlags{UIDs: []uint32{1}}).Shut(filepath.Join(dir, "none", "s")))
}

// FuzzIDs: what is accepted is printed as something that means the same.
func FuzzIDs(f *testing.F) {
	for _, s := range []string{"1", "1,2", "ann", "ann,4294967294", "4294967295", "", ",", "-1", "1,,2", "1\x00", "huge", "999999999999999999999"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var ids, again []uint32
		if err := someIDs(&ids).Set(text); err != nil {
			if len(ids) > 0 {
				t.Fatalf("%q is refused and sets %d", text, ids)
			}
			return
		}
		if len(ids) != strings.Count(text, ",")+1 {
			t.Fatalf("%q is %d", text, ids)
		}
		if err := someIDs(&again).Set(someIDs(&ids).String()); err != nil || fmt.Sprint(again) != fmt.Sprint(ids) {
			t.Fatalf("%q is %d, printed as %q (%v)", text, ids, someIDs(&ids), err)
		}
	})
}
