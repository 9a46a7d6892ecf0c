package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLimit(t *testing.T) {
	for name, c := range map[string]struct {
		groups string
		files  map[string]string
		want   uint64
		ok     bool
	}{
		"the least on the way up": {"0::/a/b\n", map[string]string{"a/b/memory.max": "max\n", "a/memory.max": "134217728\n", "memory.max": "500000000\n"}, 128 << 20, true},
		"in a namespace":          {"0::/\n", map[string]string{"memory.max": "4096\n"}, 4096, true},
		"outside of it":           {"0::/../x\n", map[string]string{"memory.max": "4096\n"}, 4096, true},
		"none":                    {"0::/a\n", map[string]string{"a/memory.max": "max\n"}, 0, false},
		"version 1":               {"3:cpu:/x\n2:memory:/docker/1\n", map[string]string{"memory/memory.limit_in_bytes": "8192\n", "memory/docker/1/memory.limit_in_bytes": "9223372036854771712\n"}, 8192, true},
		"no such file":            {"0::/\n", nil, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			groups := filepath.Join(dir, "groups")
			require.NoError(t, os.WriteFile(groups, []byte(c.groups), 0o600))
			for path, text := range c.files {
				require.NoError(t, os.MkdirAll(filepath.Join(dir, "fs", filepath.Dir(path)), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "fs", path), []byte(text), 0o600))
			}
			n, ok := limit(groups, filepath.Join(dir, "fs"))
			require.Equal(t, c.want, n)
			require.Equal(t, c.ok, ok)
		})
	}
	_, ok := limit("/nonexistent", "/nonexistent")
	require.False(t, ok)
}
