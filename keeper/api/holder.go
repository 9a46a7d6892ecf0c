package api

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/gpumem"
)

// A Who identifies a process, as the kernel named it when it connected.
type Who struct {
	UID uint32 `json:"uid"`
	GID uint32 `json:"gid"`
	PID int32  `json:"pid"` // for people: 0 across PID namespaces, and used again
}

// String describes the process in errors.
func (w Who) String() string {
	if w.PID == 0 {
		return fmt.Sprintf("a process in another PID namespace, of uid %d", w.UID)
	}
	return fmt.Sprintf("process %d of uid %d", w.PID, w.UID)
}

// A Holder has a lease of a part, or had one and may still use the memory.
type Holder struct {
	Who
	Version  uint64        `json:"version,omitzero"`
	Part     int           `json:"part"`
	Since    time.Time     `json:"since"`
	Fenced   bool          `json:"fenced"`            // its process has ended
	Lost     bool          `json:"lost,omitzero"`     // its connection has ended without a goodbye
	Revoked  bool          `json:"revoked,omitzero"`  // it was told to let go, and nobody knows whether it has
	Detached bool          `json:"detached,omitzero"` // it said that it has none of the memory, and keeps its lease
	Process  uint64        `json:"process,omitzero"`  // the keeper's number of its process, 0 if that is not known
	Access   gpumem.Access `json:"access"`            // in JSON as its String
}

// SameProcess reports whether two holders, as answers have them, are known to be one process. A
// pid of 0 tells nothing: all processes of other PID namespaces have it.
func (h Holder) SameProcess(o Holder) bool {
	return h.Process != 0 && h.Process == o.Process || h.PID != 0 && h.Who == o.Who
}

// plainHolder is Holder without its methods.
type plainHolder Holder

// MarshalJSON writes the access as its name.
func (h Holder) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		plainHolder
		Access string `json:"access"`
	}{plainHolder(h), h.Access.String()})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (h *Holder) UnmarshalJSON(text []byte) error {
	var v struct {
		plainHolder
		Access string `json:"access"`
	}
	if err := json.Unmarshal(text, &v); err != nil {
		return err
	}
	*h = Holder(v.plainHolder)
	for _, a := range []gpumem.Access{gpumem.ReadOnly, gpumem.ReadWrite} {
		if v.Access == a.String() {
			h.Access = a
			return nil
		}
	}
	return fmt.Errorf("access %q; want %q or %q", v.Access, gpumem.ReadOnly, gpumem.ReadWrite)
}

// Processes returns one holder of each process, as answers have them, in their order. Where
// nobody knows whether two holders are one process, they count as two.
func Processes(holders []Holder) (all []Holder) {
	seen, pids := map[uint64]bool{}, map[Who]bool{}
	for _, h := range holders {
		if h.Process != 0 && seen[h.Process] || h.PID != 0 && pids[h.Who] {
			continue
		}
		seen[h.Process], pids[h.Who] = true, true
		all = append(all, h)
	}
	return all
}
