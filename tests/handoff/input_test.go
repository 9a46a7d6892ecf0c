package handoff

import (
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
		{Name: "unknown flag", Args: args("-nope"), Code: 2, Words: args("-nope", " --help")},
		{Name: "positional argument", Args: args("extra"), Code: 2, Words: args(`"extra"`, " --help")},
		{Name: "flag after an argument", Args: args("extra", "-json"), Code: 2, Words: args(`"extra"`)},
		{Name: "-timeout 0", Args: args("-timeout", "0"), Code: 2, Words: args("-timeout", "more than 0")},
		{Name: "-driver unknown", Args: args("-driver", "bogus"), Code: 2, Words: args(`"bogus"`, "auto, cuda or soft")},
		{Name: "GPUFD_DRIVER unknown", Env: args("GPUFD_DRIVER=bogus"), Code: 2, Words: args(`"bogus"`, "auto, cuda or soft")},
		{Name: "-allow-uid empty", Args: args("-allow-uid", ""), Code: 2, Words: args("-allow-uid", "numbers or names")},
		{Name: "flag without value", Args: args("-access"), Code: 2, Words: args("-access")},
		{Name: "-device unknown ordinal", Args: args("-device", "99"), Code: 1, Words: args("no device 99", "0: ")},
		{Name: "-device unknown UUID", Args: args("-device", "GPU-nope"), Code: 1, Words: args("no device GPU-nope", "0: ")},
	}
	for _, c := range both {
		c.Run(t, "producer")
		c.Run(t, "consumer")
	}
	for _, c := range []programs.WrongCase{
		{Name: "-consumers -1", Args: args("-consumers", "-1"), Code: 2, Words: args("-consumers -1")},
		{Name: "-connections 0", Args: args("-connections", "0"), Code: 2, Words: args("-connections 0", "1 or more")},
		{Name: "-connections-per-peer -1", Args: args("-connections-per-peer", "-1"), Code: 2, Words: args("-connections-per-peer -1", "1 or more")},
		{Name: "-size", Args: args("-size", "1.5MiB"), Code: 2, Words: args("-size", `"1.5MiB"`)},
		{Name: "-chunk", Args: args("-chunk", "0"), Code: 2, Words: args("-chunk", `"0"`)},
		{Name: "-fill", Args: args("-fill", "host"), Code: 2, Words: args("-fill", "want gpu or cpu")},
		{Name: "-wait", Args: args("-wait", "-1s"), Code: 2, Words: args("-wait -1s: want 0 or more")},
		{Name: "-salt too large", Args: args("-salt", "4294967296"), Code: 2, Words: args("4294967296", "32 bits")},
	} {
		c.Run(t, "producer")
	}
	programs.WrongCase{Name: "-expect-salt", Args: args("-expect-salt", "sea"), Code: 2, Words: args("-expect-salt", `"sea"`, "32 bits")}.Run(t, "consumer")
	programs.WrongCase{Name: "-verify", Args: args("-verify", ""), Code: 2, Words: args("-verify", "want gpu or cpu")}.Run(t, "consumer")
}

// TestTooLarge: what the device can never hold, or cannot now.
func TestTooLarge(t *testing.T) {
	programs.Parallel(t)
	for _, c := range []programs.WrongCase{
		{Name: "-size", Args: args("-size", "1TiB"), Words: args("-size 1TiB", "larger than device", "GiB")},
		{Name: "-size near 64 bits", Args: args("-size", "16777215TiB"), Words: args("larger than device")},
		{Name: "-size at 64 bits", Args: args("-size", "18446744073709551615"), Words: args("larger than device")},
		{Name: "-chunk", Args: args("-chunk", "1TiB"), Words: args("chunks of 1TiB", "larger than device")},
		{Name: "-chunk at 64 bits", Args: args("-chunk", "18446744073709551615"), Words: args("larger than device")},
	} {
		c.Code = 1
		c.Run(t, "producer")
	}
	t.Run("for now", func(t *testing.T) {
		s := programs.NewScene(t)
		dev := cutest.Device(t)
		total := ok(dev.TotalMemory())(t)
		granularity, _, err := dev.Granularity(cu.HandleFD)
		require.NoError(t, err)
		held := ok(dev.CreateMemory(granularity, cu.HandleNone))(t)
		defer func() { require.NoError(t, held.Close()) }()
		p := s.Producer("-size", programs.Decimal(total/granularity*granularity))
		p.Fails(1, "cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)", memoryHint())
	})
}

// TestWrongSoftEnvironment: the software driver's own settings.
func TestWrongSoftEnvironment(t *testing.T) {
	programs.Parallel(t)
	for _, c := range []programs.WrongCase{
		{Name: "GPUFD_SOFT_DEVICES", Env: args("GPUFD_SOFT_DEVICES=many"), Code: 2, Words: args(`GPUFD_SOFT_DEVICES="many": want a number from 0 to 64`)},
		{Name: "GPUFD_SOFT_DIR", Env: args("GPUFD_SOFT_DIR=/dev/null"), Code: 2, Words: args(`GPUFD_SOFT_DIR="/dev/null": not a directory; want a directory of your own with mode 0700`)},
		{Name: "no devices", Env: args("GPUFD_SOFT_DEVICES=0"), Code: 3, Words: args("CUDA_ERROR_NO_DEVICE (100)")},
	} {
		c.Args = args("-driver", "soft")
		c.Run(t, "producer")
		c.Run(t, "consumer")
	}
}
