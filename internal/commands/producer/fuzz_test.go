package producer

import (
	"testing"

	"github.com/gpufd/gpufd/internal/commands/apptest"
)

func FuzzArguments(f *testing.F) {
	apptest.FuzzArguments(f, New,
		"-size 64MiB -chunk 2MiB -access rw", "-size 0", "-size 16777216TiB", "-size -1", "-access no",
		"-consumers 0 -salt 4294967295", "-consumers -1", "-salt 4294967296", "-salt 0x", "-wait 1h", "-wait -1s",
		"-device 1 -socket /s", "-socket", "-connections 1 -connections-per-peer 2", "-connections 0", "-connections-per-peer -1",
		"-handle vmm", "-handle legacy -access rw", "-handle legacy -access ro", "-handle legacy -chunk 2MiB", "-handle legacy -wait 1s", "-handle", "-handle fabric",
		"-fill gpu", "-fill cpu", "-fill=", "-fill host",
		"-allow-uid 1000 -allow-gid 0,1", "-allow-uid root,0 -allow-uid 7", "-allow-uid 4294967295", "-allow-gid 1,,2", "-allow-gid no-such-group", "-allow-uid")
}
