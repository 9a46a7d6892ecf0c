package gpumem

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// UUID names a device, or a MIG instance, in every process of a machine.
type UUID [16]byte

// String prints the UUID as nvidia-smi does for a whole device: GPU-8f7d….
func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// ParseUUID reads what [UUID.String] prints; the prefix may be GPU- or MIG-.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	rest, ok := strings.CutPrefix(s, "GPU-")
	if !ok {
		rest, ok = strings.CutPrefix(s, "MIG-")
	}
	b, err := hex.DecodeString(strings.ReplaceAll(rest, "-", ""))
	if !ok || err != nil || len(b) != len(u) {
		return u, fmt.Errorf("gpumem: %q is not a device UUID: want GPU- or MIG- and 32 hexadecimal digits", s)
	}
	return UUID(b), nil
}
