package programs

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// WaitEvent waits for a -json line of that event: Go sorts an object's members,
// so a line is looked for by what it holds.
func WaitEvent(t *testing.T, p *Process, event string) {
	t.Helper()
	Eventually(t, func() bool { return hasEvent(p, event) || p.Ended() }, "%s: no event %q", p.Name, event)
	require.True(t, hasEvent(p, event), p.Dump())
}

func hasEvent(p *Process, event string) bool {
	for _, line := range p.Out.All() {
		var object map[string]any
		if json.Unmarshal([]byte(line), &object) == nil && object["event"] == event {
			return true
		}
	}
	return false
}

// Event returns the first -json line of that event.
func Event(t *testing.T, p *Process, name string) map[string]any {
	t.Helper()
	_, all := p.Result()
	for _, object := range all {
		if object["event"] == name {
			return object
		}
	}
	t.Fatalf("no event %q\n%s", name, p.Dump())
	return nil
}
