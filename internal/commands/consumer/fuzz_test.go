package consumer

import (
	"testing"

	"github.com/gpufd/gpufd/internal/commands/apptest"
)

func FuzzArguments(f *testing.F) {
	apptest.FuzzArguments(f, New,
		"-access rw -device 1", "-access", "-expect-salt 7", "-expect-salt 0x100000000", "-expect-salt -1", "-socket /s", "-size 1",
		"-verify gpu", "-verify cpu -verify gpu", "-verify=", "-verify GPU",
		"-allow-uid 1000 -allow-gid 0,1", "-allow-uid root,0 -allow-uid 7", "-allow-uid 4294967295", "-allow-gid 1,,2", "-allow-gid no-such-group", "-allow-uid")
}
