package plain_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/plain"
)

// Characters that a terminal would obey, or that hide or turn the rest, are shown as numbers.
func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "",
		"llama/übung 日本 🙂\u00a0x":    "llama/übung 日本 🙂\u00a0x",
		"\x1b]0;pwned\x07\x1b[2J":    `\x1b]0;pwned\x07\x1b[2J`,
		"a\r\nb\tc\x7f":              `a\x0d\x0ab\x09c\x7f`,
		"\u009b31m":                  `\u009b31m`, // CSI in one character
		"a\u202eb\u2066c\u200fd":     `a\u202eb\u2066c\u200fd`,
		"\u2028\u2029\ufeff\u200b":   `\u2028\u2029\ufeff\u200b`,
		"\U000e0041":                 `\U000e0041`,
		"\x9b31m\xff":                `\x9b31m\xff`, // no UTF-8
		"\ufffd":                     "\ufffd",
		"100\\% as it is, \\x1b too": `100\% as it is, \x1b too`,
	} {
		require.Equal(t, want, plain.Text(text))
	}
	require.Equal(t, "a\n\tb\\x0d\\x1b\n", plain.Lines("a\n\tb\r\x1b\n"))
}

// JSON stays the same value.
func TestJSON(t *testing.T) {
	const text = "\x1b \u009b \u202e \u2028 \U000e0041 🙂 \x7f ü"
	b, err := json.Marshal(map[string]string{text: text})
	require.NoError(t, err)
	got := plain.JSON(b)
	require.NotContains(t, string(got), "\u009b")
	require.NotContains(t, string(got), "\u202e")
	require.NotContains(t, string(got), "\U000e0041")
	require.NotContains(t, string(got), "\x7f")
	require.Contains(t, string(got), "🙂")
	var back map[string]string
	require.NoError(t, json.Unmarshal(got, &back))
	require.Equal(t, map[string]string{text: text}, back)
	same := []byte(`{"a":"ü"}`)
	require.Equal(t, &same[0], &plain.JSON(same)[0], "nothing to do")
}
