package handoff

import (
	"strings"
	"testing"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// TestWrongFlags: what can be seen to be wrong in the command line alone.
func TestWrongFlags(t *testing.T) {
	programs.Parallel(t)
	both := []programs.WrongCase{
		{Name: "unknown flag", Args: programs.Args("-nope"), Code: 2, Words: programs.Args("-nope", " -h")},
		{Name: "positional argument", Args: programs.Args("extra"), Code: 2, Words: programs.Args(`"extra"`, " -h")},
		{Name: "flag after an argument", Args: programs.Args("extra", "-json"), Code: 2, Words: programs.Args(`"extra"`)},
		{Name: "-timeout 0", Args: programs.Args("-timeout", "0"), Code: 2, Words: programs.Args("-timeout", "more than 0")},
		{Name: "-timeout negative", Args: programs.Args("-timeout", "-1s"), Code: 2, Words: programs.Args("-timeout", "-1s")},
		{Name: "-timeout without unit", Args: programs.Args("-timeout", "10"), Code: 2, Words: programs.Args("-timeout", `"10"`)},
		{Name: "-driver unknown", Args: programs.Args("-driver", "bogus"), Code: 2, Words: programs.Args(`"bogus"`, "auto, cuda or soft")},
		{Name: "GPUFD_DRIVER unknown", Env: programs.Args("GPUFD_DRIVER=bogus"), Code: 2, Words: programs.Args(`"bogus"`, "auto, cuda or soft")},
		{Name: "-access unknown", Args: programs.Args("-access", "wo"), Code: 2, Words: programs.Args(`"wo"`, "ro or rw")},
		{Name: "-allow-uid empty", Args: programs.Args("-allow-uid", ""), Code: 2, Words: programs.Args("-allow-uid", "numbers or names")},
		{Name: "-allow-uid unknown", Args: programs.Args("-allow-uid", "0,no-such-user"), Code: 2, Words: programs.Args("-allow-uid", "unknown user no-such-user")},
		{Name: "-allow-uid too large", Args: programs.Args("-allow-uid", "4294967295"), Code: 2, Words: programs.Args("-allow-uid", "below 2^32-1")},
		{Name: "-allow-gid unknown", Args: programs.Args("-allow-gid", "no-such-group"), Code: 2, Words: programs.Args("-allow-gid", "unknown group no-such-group")},
		{Name: "-allow-gid negative", Args: programs.Args("-allow-gid", "-1"), Code: 2, Words: programs.Args("-allow-gid", `"-1"`)},
		{Name: "flag without value", Args: programs.Args("-access"), Code: 2, Words: programs.Args("-access")},
		{Name: "-device unknown ordinal", Args: programs.Args("-device", "99"), Code: 1, Words: programs.Args("no device 99", "0: ")},
		{Name: "-device negative", Args: programs.Args("-device", "-1"), Code: 1, Words: programs.Args("no device -1")},
		{Name: "-device unknown UUID", Args: programs.Args("-device", "GPU-nope"), Code: 1, Words: programs.Args("no device GPU-nope", "0: ")},
	}
	for _, c := range both {
		c.Run(t, "producer")
		c.Run(t, "consumer")
	}
	for _, text := range []string{"0", "-1", "junk", "", "1.5MiB", "1MB", "MiB", "0x", "1 2", "99999999999999999999", "18446744073709551616", "16777216TiB"} {
		for _, name := range []string{"-size", "-chunk"} {
			programs.WrongCase{Name: name + " " + text, Args: programs.Args(name, text), Code: 2, Words: programs.Args(name, `"`+text+`"`)}.Run(t, "producer")
		}
	}
	for _, c := range []programs.WrongCase{
		{Name: "-consumers -1", Args: programs.Args("-consumers", "-1"), Code: 2, Words: programs.Args("-consumers -1")},
		{Name: "-connections 0", Args: programs.Args("-connections", "0"), Code: 2, Words: programs.Args("-connections 0", "1 or more")},
		{Name: "-connections junk", Args: programs.Args("-connections", "many"), Code: 2, Words: programs.Args("-connections", `"many"`)},
		{Name: "-connections-per-peer -1", Args: programs.Args("-connections-per-peer", "-1"), Code: 2, Words: programs.Args("-connections-per-peer -1", "1 or more")},
		{Name: "-consumers junk", Args: programs.Args("-consumers", "some"), Code: 2, Words: programs.Args(`"some"`)},
		{Name: "-salt too large", Args: programs.Args("-salt", "4294967296"), Code: 2, Words: programs.Args("4294967296", "32 bits")},
		{Name: "-salt negative", Args: programs.Args("-salt", "-1"), Code: 2, Words: programs.Args("-salt", `"-1"`)},
		{Name: "-salt junk", Args: programs.Args("-salt", "sea"), Code: 2, Words: programs.Args("-salt", `"sea"`)},
	} {
		c.Run(t, "producer")
	}
	for _, salt := range []string{"sea", "-1", "4294967296", "99999999999999999999", "1.0"} {
		programs.WrongCase{Name: "-expect-salt " + salt, Args: programs.Args("-expect-salt", salt), Code: 2, Words: programs.Args("-expect-salt", `"`+salt+`"`, "32 bits")}.Run(t, "consumer")
	}
}

// TestTooLarge: what the device can never hold, or cannot now.
func TestTooLarge(t *testing.T) {
	programs.Parallel(t)
	for _, c := range []programs.WrongCase{
		{Name: "-size", Args: programs.Args("-size", "1TiB"), Words: programs.Args("-size 1TiB", "larger than device", "GiB")},
		{Name: "-size near 64 bits", Args: programs.Args("-size", "16777215TiB"), Words: programs.Args("larger than device")},
		{Name: "-size at 64 bits", Args: programs.Args("-size", "18446744073709551615"), Words: programs.Args("larger than device")},
		{Name: "-chunk", Args: programs.Args("-chunk", "1TiB"), Words: programs.Args("chunks of 1TiB", "larger than device")},
		{Name: "-chunk at 64 bits", Args: programs.Args("-chunk", "18446744073709551615"), Words: programs.Args("larger than device")},
	} {
		c.Code = 1
		c.Run(t, "producer")
	}
	t.Run("for now", func(t *testing.T) {
		s := programs.NewScene(t)
		dev := cutest.Device(t)
		total, err := dev.TotalMemory()
		require.NoError(t, err)
		granularity, _, err := dev.Granularity(cu.HandleFD)
		require.NoError(t, err)
		held, err := dev.CreateMemory(granularity, cu.HandleNone)
		require.NoError(t, err)
		defer func() { require.NoError(t, held.Close()) }()
		p := s.Producer("-size", programs.Decimal(total/granularity*granularity))
		p.Fails(1, "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)", memoryHint())
	})
}

// TestWrongSoftEnvironment: the software driver's own settings.
func TestWrongSoftEnvironment(t *testing.T) {
	programs.Parallel(t)
	for _, c := range []programs.WrongCase{
		{Name: "GPUFD_SOFT_DEVICES", Env: programs.Args("GPUFD_SOFT_DEVICES=many"), Code: 2, Words: programs.Args(`GPUFD_SOFT_DEVICES="many": want a number from 0 to 64`)},
		{Name: "GPUFD_SOFT_MEMORY", Env: programs.Args("GPUFD_SOFT_MEMORY=lots"), Code: 2, Words: programs.Args(`GPUFD_SOFT_MEMORY="lots": want bytes, or a number and KiB, MiB or GiB`)},
		{Name: "GPUFD_SOFT_VERSION", Env: programs.Args("GPUFD_SOFT_VERSION=13.0"), Code: 2, Words: programs.Args(`GPUFD_SOFT_VERSION="13.0": want a number from 1000 to 13000`)},
		{Name: "GPUFD_SOFT_PEERS", Env: programs.Args("GPUFD_SOFT_PEERS=no"), Code: 2, Words: programs.Args(`GPUFD_SOFT_PEERS="no": want a number from 0 to 1`)},
		{Name: "GPUFD_SOFT_IPC", Env: programs.Args("GPUFD_SOFT_IPC=no"), Code: 2, Words: programs.Args(`GPUFD_SOFT_IPC="no": want a number from 0 to 1`)},
		{Name: "GPUFD_SOFT_VMM", Env: programs.Args("GPUFD_SOFT_VMM=no"), Code: 2, Words: programs.Args(`GPUFD_SOFT_VMM="no": want a number from 0 to 1`)},
		{Name: "GPUFD_SOFT_IMEX", Env: programs.Args("GPUFD_SOFT_IMEX=yes"), Code: 2, Words: programs.Args(`GPUFD_SOFT_IMEX="yes": want a number from 0 to 1`)},
		{Name: "GPUFD_SOFT_DIR", Env: programs.Args("GPUFD_SOFT_DIR=/dev/null"), Code: 2, Words: programs.Args(`GPUFD_SOFT_DIR="/dev/null": not a directory; want a directory of your own with mode 0700`)},
		{Name: "no devices", Env: programs.Args("GPUFD_SOFT_DEVICES=0"), Code: 3, Words: programs.Args("CUDA_ERROR_NO_DEVICE (100)")},
	} {
		c.Args = programs.Args("-driver", "soft")
		c.Run(t, "producer")
		c.Run(t, "consumer")
	}
}

func TestVersionAndHelp(t *testing.T) {
	programs.Parallel(t)
	for program, flags := range map[string]string{
		"producer": "driver json timeout version device size chunk access consumers salt socket allow-uid allow-gid connections-per-peer",
		"consumer": "driver json timeout version device access expect-salt socket allow-uid allow-gid",
	} {
		t.Run(program, func(t *testing.T) {
			s := programs.NewScene(t)
			version := s.Start(program, nil, "-version")
			version.Succeeds()
			require.Len(t, version.Out.All(), 1)
			require.Regexp(t, `^`+program+` \S+ linux/(amd64|arm64)$`, version.Out.All()[0])

			for _, flag := range []string{"-h", "--help"} {
				help := s.Start(program, nil, flag)
				help.Succeeds()
				for f := range strings.FieldsSeq(flags) {
					require.Len(t, programs.Find(help, "  --"+f), 1, help.Dump())
				}
				require.Contains(t, help.Out.String(), "Exit codes: 0")
			}
		})
	}
}
