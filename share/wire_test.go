package share

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// messages are one or more of every type, with the extremes of their fields.
func messages() []message {
	full := vmm.Descriptor{Kind: 255, Device: cu.UUID{1, 15: 2}, Size: math.MaxUint64, ChunkSize: math.MaxUint64 - 1,
		Chunks: math.MaxUint32, Granularity: math.MaxUint64 - 2, Generation: math.MaxUint64 - 3}
	return []message{
		attach{cu.CUDA, cu.ReadOnly, ""}, attach{cu.Soft, cu.ReadWrite, strings.Repeat("ä", 127)}, attach{0, cu.ReadOnly, "x"},
		offer{access: cu.ReadOnly, name: "n"},
		offer{full, cu.ReadWrite, strings.Repeat("n", maxName), noise(maxData, 1), math.MaxUint32, math.MaxUint32 - 1, true, nil},
		offer{desc: vmm.Descriptor{Kind: 1, Size: 1, ChunkSize: 1, Chunks: 1}, access: cu.ReadWrite, name: "n", legacy: &LegacyHandle{}},
		offer{desc: vmm.Descriptor{Size: 2, ChunkSize: math.MaxUint64, Chunks: 1, Generation: math.MaxUint64}, access: cu.ReadWrite, name: "n", data: noise(9, 1),
			pending: true, legacy: &LegacyHandle{cu.IPCHandle{1, 63: 2}, math.MaxUint64 - 2}},
		refuse{}, refuse{math.MaxUint16, strings.Repeat("x", maxText)},
		progress{}, progress{math.MaxUint64, math.MaxUint64 - 1}, mapped{}, mapped{math.MaxUint64},
		verdict{}, verdict{true, ""}, verdict{false, "a\nb\x00c\u2028"}, revoke{}, revoke{"🚀"}, publish{}, publish{math.MaxUint64}, confirm{}, confirm{math.MaxUint64},
	}
}

func TestMessagesSurviveTheWire(t *testing.T) {
	seen := map[msgType]bool{}
	for _, m := range messages() {
		record := encode(m)
		require.LessOrEqual(t, len(record), sock.MaxRecord)
		got, err := decode(record)
		require.NoError(t, err, "%#v", m)
		require.Equal(t, m, got)
		require.Equal(t, record, encode(got))
		seen[m.kind()] = true
		for i := range record { // and no shorter
			_, err := decode(record[:i])
			require.Error(t, err, "%#v, %d bytes", m, i)
			require.True(t, errors.Is(err, ErrWire), "%v", err)
		}
		_, err = decode(append(record, 0))
		require.ErrorIs(t, err, ErrWire)
	}
	require.Len(t, seen, 9)
}

// What is decoded holds nothing of the record, whose memory is used again.
func TestDecodedMessageIsACopy(t *testing.T) {
	record := encode(offer{access: cu.ReadOnly, name: "name", data: []byte("data")})
	m, err := decode(record)
	require.NoError(t, err)
	clear(record)
	require.Equal(t, "name", m.(offer).name)
	require.Equal(t, "data", string(m.(offer).data))
}

// Whatever words an error has, they reach the other side as far as they fit.
func TestTextsAreMadeToFit(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"empty":       {"", ""},
		"fits":        {strings.Repeat("x", maxText), strings.Repeat("x", maxText)},
		"too long":    {strings.Repeat("x", maxText+1), strings.Repeat("x", maxText)},
		"half a rune": {strings.Repeat("x", maxText-1) + "€", strings.Repeat("x", maxText-1)},
		"most of one": {strings.Repeat("x", maxText-2) + "€", strings.Repeat("x", maxText-2)},
		"one fits":    {strings.Repeat("x", maxText-3) + "€€", strings.Repeat("x", maxText-3) + "€"},
		"four bytes":  {strings.Repeat("x", maxText-3) + "🚀", strings.Repeat("x", maxText-3)},
		"no UTF-8":    {"a\xff\xfeb", "a\uFFFDb"},
	} {
		for _, m := range []message{verdict{false, c.text}, refuse{RefusedBusy, c.text}, revoke{c.text}} {
			got, err := decode(encode(m))
			require.NoError(t, err, name)
			var text string
			switch got := got.(type) {
			case verdict:
				text = got.text
			case refuse:
				text = got.text
			case revoke:
				text = got.text
			}
			require.Equal(t, c.want, text, name)
			require.True(t, utf8.ValidString(text))
		}
	}
}

// A newer version is told from garbage: the answers differ.
func TestVersionComesBeforeEverythingElse(t *testing.T) {
	for _, v := range []byte{0, 2, 255} {
		_, err := decode(flaw(mapped{1}, 4, v))
		require.ErrorIs(t, err, ErrVersion)
		require.NotErrorIs(t, err, ErrWire)
		_, err = decode(append(flaw(mapped{1}, 4, v), noise(50, 1)...))
		require.ErrorIs(t, err, ErrVersion, "whatever else there is")
	}
	require.Equal(t, RefusedVersion, refusal(ErrVersion).code)
	require.Equal(t, RefusedRecord, refusal(ErrWire).code)
}

// FAULTS 58: whom the offer could not be sent to is not told that it took too long.
func TestFault58_RefusalSaysWhoseFaultItIs(t *testing.T) {
	err := fmt.Errorf("%w: %w: %w", sock.ErrTooManyInFlight, context.DeadlineExceeded, ErrTimeout)
	require.Equal(t, RefusedBusy, refusal(err).code)
	require.Contains(t, refusal(err).text, "in flight")
	require.Equal(t, RefusedTimeout, refusal(ErrTimeout).code)
}

func TestErrorsSayWhoSaysSo(t *testing.T) {
	require.Equal(t, "refused by the peer (busy): come\uFFFD again", (&RefusalError{RefusedBusy, "come\x1b again"}).Error())
	require.Equal(t, "refused by the peer (code 99): ", (&RefusalError{99, ""}).Error())
	require.Equal(t, "the consumer reports: very bad", (&VerdictError{"very\nbad"}).Error())
	require.NotErrorIs(t, &RefusalError{}, ErrVerdict)
	require.NotErrorIs(t, &VerdictError{}, ErrRefused)
}
