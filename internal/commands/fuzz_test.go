package main

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/commands/consumer"
	"github.com/gpufd/gpufd/internal/commands/launch"
	"github.com/gpufd/gpufd/internal/commands/producer"
	"github.com/gpufd/gpufd/internal/commands/ring"
)

// fuzzed are the commands whose arguments are fuzzed, with seeds, which blanks join.
var fuzzed = []struct {
	open  func(stdout io.Writer) *app.App
	seeds []string
}{
	{producer.New, []string{
		"-size 64MiB -chunk 2MiB -access rw", "-size 0", "-size 16777216TiB", "-size -1", "-access no",
		"-consumers 0 -salt 4294967295", "-consumers -1", "-salt 4294967296", "-salt 0x", "-wait 1h", "-wait -1s",
		"-device 1 -socket /s", "-socket", "-connections 1 -connections-per-peer 2", "-connections 0", "-connections-per-peer -1",
		"-handle vmm", "-handle legacy -access rw", "-handle legacy -access ro", "-handle legacy -chunk 2MiB", "-handle legacy -wait 1s", "-handle", "-handle fabric",
		"-fill gpu", "-fill cpu", "-fill=", "-fill host", "-wait 11",
		"-allow-uid 1000 -allow-gid 0,1", "-allow-uid root,0 -allow-uid 7", "-allow-uid 4294967295", "-allow-gid 1,,2", "-allow-gid no-such-group", "-allow-uid",
	}},
	{consumer.New, []string{
		"-access rw -device 1", "-access", "-expect-salt 7", "-expect-salt 0x100000000", "-expect-salt -1", "-socket /s", "-size 1",
		"-verify gpu", "-verify cpu -verify gpu", "-verify=", "-verify GPU", "--json",
		"-allow-uid 1000 -allow-gid 0,1", "-allow-uid root,0 -allow-uid 7", "-allow-uid 4294967295", "-allow-gid 1,,2", "-allow-gid no-such-group", "-allow-uid",
	}},
	{launch.New, []string{
		"-ptx f -list", "-module f -list -kernel k", "-builtin vector -list", "-builtin nope -list", "-list", "-list u8:1",
		"-ptx f -module f -kernel k", "-ptx f", "-ptx f -kernel k", "-ptx f -kernel k -list=false",
		"-builtin vector -kernel saxpy -grid 4,5,6 -block 1,2 -shared 1KiB -repeat 7 -bytes 3 f32:2 in:x inout:y:z u64:0x10 zero:1KiB:o",
		"-ptx f -kernel k -grid 0", "-ptx f -kernel k -grid 1,2,3,4", "-ptx f -kernel k -block 1,,1", "-ptx f -kernel k -block 4294967296",
		"-ptx f -kernel k -repeat 0", "-ptx f -kernel k -- u8:1 -json", "-ptx f -kernel k zero:1:o zero:2:o",
	}},
	{ring.New, []string{
		"-procs 8 -steps 3 -size 4MiB -place first -v", "-procs 0", "-procs 65", "-procs -1", "-steps 0", "-steps x", "-size 0",
		"-place last", "-place spread", "-salt 0x10", "-salt 4294967296", "-salt -1", "-compat", "-compat -salt 0", "-module f", "-module=",
		"member", "member -driver soft",
	}},
}

// FuzzArguments parses arguments, with NUL between them, as a command does. Parsing ends without a panic and without a
// driver, whatever they are. Refused arguments are wrong usage, exit code 2, in one line.
func FuzzArguments(f *testing.F) {
	common := []string{"", "-h", "-version", "-json", "-driver soft -timeout 1m", "extra", "-", "--", "-- -h", "-nope", "-=", "-json=maybe", "-timeout",
		"-\n        ", "-json -\xf2\x86\xa9", "-json \x010\x7f\xff"}
	for i, c := range fuzzed {
		for _, s := range append(c.seeds, common...) {
			f.Add(i, strings.ReplaceAll(s, " ", "\x00"))
		}
	}
	f.Fuzz(func(t *testing.T, command int, joined string) {
		open, args := fuzzed[uint(command)%uint(len(fuzzed))].open, strings.Split(joined, "\x00")
		print, err := open(io.Discard).Parse(args)
		if print == nil && err == nil {
			return
		}
		want, lines := cli.ExitOK, 0
		if err != nil {
			want, lines = cli.ExitUsage, 1
		}
		var stdout, stderr bytes.Buffer
		app := open(&stdout)
		code := app.Run(args, &stderr)
		if code != want || app.Driver != nil || strings.Count(stderr.String(), "\n") != lines {
			t.Fatalf("%q: exit code %d, driver %v, %q", args, code, app.Driver, &stderr)
		}
	})
}
