package tests

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// TestWrongFlags: what can be seen to be wrong in the command line alone.
func TestWrongFlags(t *testing.T) {
	both := []wrongCase{
		{name: "unknown flag", args: args("-nope"), code: 2, words: args("-nope", " -h")},
		{name: "positional argument", args: args("extra"), code: 2, words: args(`"extra"`, " -h")},
		{name: "flag after an argument", args: args("extra", "-json"), code: 2, words: args(`"extra"`)},
		{name: "-timeout 0", args: args("-timeout", "0"), code: 2, words: args("-timeout", "more than 0")},
		{name: "-timeout negative", args: args("-timeout", "-1s"), code: 2, words: args("-timeout", "-1s")},
		{name: "-timeout without unit", args: args("-timeout", "10"), code: 2, words: args("-timeout", `"10"`)},
		{name: "-driver unknown", args: args("-driver", "bogus"), code: 2, words: args(`"bogus"`, "auto, cuda or soft")},
		{name: "GPUFD_DRIVER unknown", env: args("GPUFD_DRIVER=bogus"), code: 2, words: args(`"bogus"`, "auto, cuda or soft")},
		{name: "-access unknown", args: args("-access", "wo"), code: 2, words: args(`"wo"`, "ro or rw")},
		{name: "-allow-uid empty", args: args("-allow-uid", ""), code: 2, words: args("-allow-uid", "numbers or names")},
		{name: "-allow-uid unknown", args: args("-allow-uid", "0,no-such-user"), code: 2, words: args("-allow-uid", "unknown user no-such-user")},
		{name: "-allow-uid too large", args: args("-allow-uid", "4294967295"), code: 2, words: args("-allow-uid", "below 2^32-1")},
		{name: "-allow-gid unknown", args: args("-allow-gid", "no-such-group"), code: 2, words: args("-allow-gid", "unknown group no-such-group")},
		{name: "-allow-gid negative", args: args("-allow-gid", "-1"), code: 2, words: args("-allow-gid", `"-1"`)},
		{name: "flag without value", args: args("-access"), code: 2, words: args("-access")},
		{name: "-device unknown ordinal", args: args("-device", "99"), code: 1, words: args("no device 99", "0: ")},
		{name: "-device negative", args: args("-device", "-1"), code: 1, words: args("no device -1")},
		{name: "-device unknown UUID", args: args("-device", "GPU-nope"), code: 1, words: args("no device GPU-nope", "0: ")},
	}
	for _, c := range both {
		c.run(t, "producer")
		c.run(t, "consumer")
	}
	for _, text := range []string{"0", "-1", "junk", "", "1.5MiB", "1MB", "MiB", "0x", "1 2", "99999999999999999999", "18446744073709551616", "16777216TiB"} {
		for _, name := range []string{"-size", "-chunk"} {
			wrongCase{name: name + " " + text, args: args(name, text), code: 2, words: args(name, `"`+text+`"`)}.run(t, "producer")
		}
	}
	for _, c := range []wrongCase{
		{name: "-consumers -1", args: args("-consumers", "-1"), code: 2, words: args("-consumers -1")},
		{name: "-connections 0", args: args("-connections", "0"), code: 2, words: args("-connections 0", "1 or more")},
		{name: "-connections junk", args: args("-connections", "many"), code: 2, words: args("-connections", `"many"`)},
		{name: "-connections-per-peer -1", args: args("-connections-per-peer", "-1"), code: 2, words: args("-connections-per-peer -1", "1 or more")},
		{name: "-consumers junk", args: args("-consumers", "some"), code: 2, words: args(`"some"`)},
		{name: "-salt too large", args: args("-salt", "4294967296"), code: 2, words: args("4294967296", "32 bits")},
		{name: "-salt negative", args: args("-salt", "-1"), code: 2, words: args("-salt", `"-1"`)},
		{name: "-salt junk", args: args("-salt", "sea"), code: 2, words: args("-salt", `"sea"`)},
	} {
		c.run(t, "producer")
	}
	for _, salt := range []string{"sea", "-1", "4294967296", "99999999999999999999", "1.0"} {
		wrongCase{name: "-expect-salt " + salt, args: args("-expect-salt", salt), code: 2, words: args("-expect-salt", `"`+salt+`"`, "32 bits")}.run(t, "consumer")
	}
}

// TestTooLarge: what the device can never hold, or cannot now.
func TestTooLarge(t *testing.T) {
	for _, c := range []wrongCase{
		{name: "-size", args: args("-size", "1TiB"), words: args("-size 1TiB", "larger than device", "GiB")},
		{name: "-size near 64 bits", args: args("-size", "16777215TiB"), words: args("larger than device")},
		{name: "-size at 64 bits", args: args("-size", "18446744073709551615"), words: args("larger than device")},
		{name: "-chunk", args: args("-chunk", "1TiB"), words: args("chunks of 1TiB", "larger than device")},
		{name: "-chunk at 64 bits", args: args("-chunk", "18446744073709551615"), words: args("larger than device")},
	} {
		c.code = 1
		c.run(t, "producer")
	}
	t.Run("for now", func(t *testing.T) {
		s := newScene(t)
		dev := cutest.Device(t)
		total, err := dev.TotalMemory()
		require.NoError(t, err)
		granularity, _, err := dev.Granularity(cu.HandleFD)
		require.NoError(t, err)
		held, err := dev.CreateMemory(granularity, cu.HandleNone)
		require.NoError(t, err)
		defer func() { require.NoError(t, held.Close()) }()
		p := s.producer("-size", decimal(total/granularity*granularity))
		p.fails(1, "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)", memoryHint())
	})
}

// TestWrongSoftEnvironment: the software driver's own settings.
func TestWrongSoftEnvironment(t *testing.T) {
	for _, c := range []wrongCase{
		{name: "GPUFD_SOFT_DEVICES", env: args("GPUFD_SOFT_DEVICES=many"), code: 2, words: args(`GPUFD_SOFT_DEVICES="many": want a number from 0 to 64`)},
		{name: "GPUFD_SOFT_MEMORY", env: args("GPUFD_SOFT_MEMORY=lots"), code: 2, words: args(`GPUFD_SOFT_MEMORY="lots": want bytes, or a number and KiB, MiB or GiB`)},
		{name: "GPUFD_SOFT_VERSION", env: args("GPUFD_SOFT_VERSION=13.0"), code: 2, words: args(`GPUFD_SOFT_VERSION="13.0": want a number from 1000 to 13000`)},
		{name: "GPUFD_SOFT_PEERS", env: args("GPUFD_SOFT_PEERS=no"), code: 2, words: args(`GPUFD_SOFT_PEERS="no": want a number from 0 to 1`)},
		{name: "GPUFD_SOFT_IPC", env: args("GPUFD_SOFT_IPC=no"), code: 2, words: args(`GPUFD_SOFT_IPC="no": want a number from 0 to 1`)},
		{name: "GPUFD_SOFT_VMM", env: args("GPUFD_SOFT_VMM=no"), code: 2, words: args(`GPUFD_SOFT_VMM="no": want a number from 0 to 1`)},
		{name: "GPUFD_SOFT_IMEX", env: args("GPUFD_SOFT_IMEX=yes"), code: 2, words: args(`GPUFD_SOFT_IMEX="yes": want a number from 0 to 1`)},
		{name: "GPUFD_SOFT_DIR", env: args("GPUFD_SOFT_DIR=/dev/null"), code: 2, words: args(`GPUFD_SOFT_DIR="/dev/null": not a directory; want a directory of your own with mode 0700`)},
		{name: "no devices", env: args("GPUFD_SOFT_DEVICES=0"), code: 3, words: args("CUDA_ERROR_NO_DEVICE (100)")},
	} {
		c.args = args("-driver", "soft")
		c.run(t, "producer")
		c.run(t, "consumer")
	}
}

func TestVersionAndHelp(t *testing.T) {
	for program, flags := range map[string]string{
		"producer": "driver json timeout version device size chunk access consumers salt socket allow-uid allow-gid connections-per-peer",
		"consumer": "driver json timeout version device access expect-salt socket allow-uid allow-gid",
	} {
		t.Run(program, func(t *testing.T) {
			s := newScene(t)
			version := s.start(program, nil, "-version")
			version.succeeds()
			require.Len(t, version.out.all(), 1)
			require.Regexp(t, `^`+program+` \S+ linux/(amd64|arm64)$`, version.out.all()[0])

			for _, flag := range []string{"-h", "--help"} {
				help := s.start(program, nil, flag)
				help.succeeds()
				for f := range strings.FieldsSeq(flags) {
					require.Len(t, find(help, "  --"+f), 1, help.dump())
				}
				require.Contains(t, help.out.String(), "Exit codes: 0")
			}
		})
	}
}
