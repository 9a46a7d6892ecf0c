package lean

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu/cutest"
)

const smaps = `00400000-00500000 r-xp 00000000 00:1d 77 /bin/gpufd
Rss:                1024 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me
00500000-00501000 r--p 00100000 00:1d 77 /bin/gpufd
Rss:                   4 kB
Anonymous:             4 kB
00501000-00502000 rw-p 00101000 00:1d 77 /bin/gpufd
Anonymous:             0 kB
00502000-00503000 rw-p 00000000 00:00 0
Anonymous:             0 kB
7f0000000000-7f0000001000 r-xp 00000000 00:1d 78 /lib/libc.so.6
Anonymous:             0 kB
00600000-00700000 r--p 00200000 00:1d 77 /bin/gpufd
Anonymous:             0 kB
`

// What was written and is read-only since is not in the file.
func TestPrograms(t *testing.T) {
	require.Equal(t, []mapping{{0x400000, 0x500000}, {0x600000, 0x700000}}, programs(strings.NewReader(smaps), "/bin/gpufd"))
	require.Empty(t, programs(strings.NewReader("x-y\nr\n\n0-1 r--p 0 0 0 /bin/gpufd\nAnonymous:\n"), "/bin/gpufd"))
}

// A process goes on as before. Where a page comes back, little comes along.
func TestTrim(t *testing.T) {
	Trim()
	found := ownPages()
	require.NotEmpty(t, found)
	if !cutest.Emulated() { // qemu-user's own list of mappings does not show them split
		for _, m := range found {
			require.LessOrEqual(t, m.to-m.from, uintptr(window))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	Stay(ctx)
}
