package tests

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// waitEvent waits for a -json line of that event: Go sorts an object's members,
// so a line is looked for by what it holds.
func waitEvent(t *testing.T, p *process, event string) {
	t.Helper()
	eventually(t, func() bool { return hasEvent(p, event) || p.ended() }, "%s: no event %q", p.name, event)
	require.True(t, hasEvent(p, event), p.dump())
}

func hasEvent(p *process, event string) bool {
	for _, line := range p.out.all() {
		if object, err := parse(line); err == nil && object["event"] == event {
			return true
		}
	}
	return false
}

func parse(line string) (object map[string]any, err error) {
	err = json.Unmarshal([]byte(line), &object)
	return object, err
}

// event returns the first -json line of that event.
func event(t *testing.T, p *process, name string) map[string]any {
	t.Helper()
	_, all := p.result()
	for _, object := range all {
		if object["event"] == name {
			return object
		}
	}
	t.Fatalf("no event %q\n%s", name, p.dump())
	return nil
}
