package api

import "time"

// A Status describes a keeper.
type Status struct {
	PID     int       `json:"pid"`
	Store   int       `json:"store_pid"` // 0 when there is none
	Since   time.Time `json:"since"`
	Names   int       `json:"names"`   // how many it keeps
	Version string    `json:"version"` // of its program
}

// An Event is what happens to a name: Kind is committed, damaged, quarantined, draining, removed,
// or served (again). Without a name it is about a device.
type Event struct {
	Time    time.Time `json:"time"`
	Name    string    `json:"name,omitempty"`
	Kind    string    `json:"event"`
	Version uint64    `json:"version,omitempty"`
	Text    string    `json:"text,omitempty"`
}
