package gpufd

import (
	"encoding/json"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// evil sets a terminal's title, clears it, changes the colour and the direction, and fakes a line.
const evil = "\x1b]0;pwned\x07\x1b[2J\x1b[31mEVIL\u202e\u009b31m\r\nfake: all is well"

// stranger is a keeper of another user, which answers each operation as told.
func (u *user) stranger(answers map[string]any) {
	u.t.Helper()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(u.dir, "s.ctl"), Net: "unixpacket"})
	require.NoError(u.t, err)
	done := make(chan struct{})
	u.t.Cleanup(func() { _ = l.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			answer(c, answers)
		}
	}()
}

// answer answers until the peer goes. The first byte of a record says whether more come.
func answer(c *net.UnixConn, answers map[string]any) {
	defer c.Close()
	b := make([]byte, 1<<16)
	for {
		n, err := c.Read(b)
		var r struct {
			Op string `json:"op"`
		}
		if err != nil || n < 1 || json.Unmarshal(b[1:n], &r) != nil {
			return
		}
		text, _ := json.Marshal(answers[r.Op])
		_, _ = c.Write(append([]byte{1}, text...))
	}
}

// Text from a keeper of another user is escaped before it reaches the terminal.
func TestStrangersWordsAreEscaped(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	holder := map[string]any{"pid": 1, "uid": 2, "access": "read-only", "part": 0, "since": "2026-01-01T00:00:00Z"}
	name := map[string]any{
		"name": evil, "version": 1, "state": evil, "digest": evil, "bytes": 1, "labels": map[string]string{evil: evil},
		"parts":   []any{map[string]any{"part": 0, "device": evil, "bytes": 1, "digest": evil, "state": evil, "reason": evil}},
		"holders": []any{holder}, "retired": []any{}, "pending": []any{},
	}
	no := map[string]any{"error": map[string]any{"code": evil, "message": evil}}
	u.stranger(map[string]any{
		"status": map[string]any{"status": map[string]any{"pid": 1, "store_pid": 1, "since": "2026-01-01T00:00:00Z", "names": 1, "version": evil}},
		"list":   map[string]any{"names": []any{name}}, "stat": map[string]any{"names": []any{name}},
		"remove": no, "drain": no, "book": no, "report": no, "lease": no, "watch": no,
	})
	u.write("a", data(10, 0))
	for _, c := range []struct {
		args string
		code int
		want string // once in what it prints
	}{
		{"ls", 0, `EVIL\u202e\u009b31m\x0d\x0afake: all is well`},
		{"ls --json", 0, `\u009b31m`},
		{"stat x", 0, `label`},
		{"stat x --json", 0, `\u009b31m`},
		{"rm x", 1, `EVIL\u202e\u009b31m`},
		{"rm x --json", 1, `\u202e\u009b31m`},
		{"drain x", 1, `EVIL\u202e`},
		{"put x a", 1, `EVIL\u202e`},
		{"watch", 1, `EVIL\u202e`},
		{"get x --verify", 1, `gpufd get`},
		{"doctor --with .", 1, `doctor`},
		{evil, 2, `EVIL\u202e`},
		{"ls --" + strings.ReplaceAll(evil, " ", ""), 2, `EVIL\u202e`},
		{"put x " + strings.ReplaceAll(evil, " ", ""), 1, `EVIL\u202e`},
	} {
		args := strings.Split(c.args, " ")
		if c.args == evil {
			args = []string{evil}
		}
		code, out, errs := u.run(args...)
		require.Equal(t, c.code, code, "%q: %s", c.args, errs)
		require.Contains(t, out+errs, c.want, c.args)
		for _, r := range out + errs {
			require.True(t, unicode.IsGraphic(r) || r == '\n', "%q: %q in %q", c.args, r, out+errs)
		}
		require.NotContains(t, out+errs, "\nfake", c.args)
	}
}
