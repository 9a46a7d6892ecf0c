package keeper

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper/api"
)

// A Use is a version of a name, or one in the making, that takes memory of a device.
type Use struct {
	Name    string
	Version uint64 // 0: in the making
	Current bool   // readers get it; else it is a retired one
	Gone    bool   // the keeper has given it up: its holders alone may have it
	Bytes   uint64 // of its parts on the device
	Holders []api.Holder
}

// String describes the use for people: which processes have the memory, and how it
// becomes free.
func (u Use) String() string {
	what := fmt.Sprintf("%s, version %d, has %d bytes there", u.Name, u.Version, u.Bytes)
	switch {
	case u.Version == 0 && len(u.Holders) == 0:
		return fmt.Sprintf("%s is being written, with %d bytes there: it is given up when its time is over", u.Name, u.Bytes)
	case u.Version == 0:
		return fmt.Sprintf("%s is being written, with %d bytes there, by %s", u.Name, u.Bytes, PIDs(u.Holders))
	case u.Current && len(u.Holders) == 0:
		return fmt.Sprintf("%s, which nobody holds (gpufd drain %s frees them)", what, u.Name)
	case u.Current:
		return fmt.Sprintf("%s, held by %s (gpufd drain %s asks them to release it, then frees it)", what, PIDs(u.Holders), u.Name)
	case u.Gone:
		return fmt.Sprintf("%s, which was given up and is free when %s let go or end", what, PIDs(u.Holders))
	}
	return fmt.Sprintf("%s, which is retired and is free when %s let go", what, PIDs(u.Holders))
}

// PIDs names the processes of holders for people, each once. Those of other PID namespaces, which
// have no pid here, are counted.
func PIDs(holders []api.Holder) string {
	var named []string
	elsewhere := 0
	for _, h := range api.Processes(holders) {
		if h.PID == 0 {
			elsewhere++
		} else {
			named = append(named, fmt.Sprintf("PID %d", h.PID))
		}
	}
	switch {
	case elsewhere == 1:
		named = append(named, "a process in another PID namespace")
	case elsewhere > 1:
		named = append(named, fmt.Sprintf("%d processes in other PID namespaces", elsewhere))
	}
	return strings.Join(named, ", ")
}

// UsesOf returns the versions of a name that take memory of a device. Parts that are parked take none.
func UsesOf(n api.Info, dev cu.UUID) (all []Use) {
	device := dev.String()
	now := Use{Name: n.Name, Version: n.Version, Current: true}
	for _, p := range n.Parts {
		if !p.Parked {
			now.add(device, p.Part, p.Device, p.Bytes, n.Holders)
		}
	}
	uses := []Use{now}
	for _, r := range n.Retired {
		u := Use{Name: n.Name, Version: r.Version, Gone: r.Gone}
		for _, p := range r.Parts {
			if !p.Parked {
				u.add(device, p.Part, p.Device, p.Bytes, r.Holders)
			}
		}
		uses = append(uses, u)
	}
	for _, t := range n.Pending {
		u := Use{Name: n.Name}
		for _, p := range t.Devices {
			u.add(device, p.Part, p.Device, p.Bytes, t.Writers)
		}
		uses = append(uses, u)
	}
	return slices.DeleteFunc(uses, func(u Use) bool { return u.Bytes == 0 })
}

// add adds a part and its holders, if the part is on the device.
func (u *Use) add(device string, part int, of string, bytes uint64, holders []api.Holder) {
	if of != device {
		return
	}
	u.Bytes += bytes
	for _, h := range holders {
		if h.Part == part {
			u.Holders = append(u.Holders, h)
		}
	}
}
