package api

import "time"

// A Status describes a keeper.
type Status struct {
	PID     int       `json:"pid"`
	Store   int       `json:"store_pid"` // 0 when there is none
	Since   time.Time `json:"since"`
	Names   int       `json:"names"`          // how many it keeps
	Version string    `json:"version"`        // of its program
	Pool    *Pool     `json:"pool,omitempty"` // for parking; nil if there is none and none was wanted
}

// A Pool is memory of the host in which versions are parked.
type Pool struct {
	Wanted uint64 `json:"wanted"` // bytes, as the keeper was told
	Bytes  uint64 `json:"bytes"`  // that there are
	Free   uint64 `json:"free"`
	Error  string `json:"error,omitempty"` // why there are fewer than were wanted
}

// Moved says what parking or unparking a version has taken.
type Moved struct {
	Version uint64  `json:"version"`
	Bytes   uint64  `json:"bytes"`        // that were copied; 0 if all were there already
	Copy    float64 `json:"copy_seconds"` // for the copies alone
	Seconds float64 `json:"seconds"`      // in all
}

// An Event is what happens to a name: Kind is committed, damaged, quarantined, draining, removed,
// served (again), parked or unparked. Without a name it is about a device.
type Event struct {
	Time    time.Time `json:"time"`
	Name    string    `json:"name,omitempty"`
	Kind    string    `json:"event"`
	Version uint64    `json:"version,omitempty"`
	Text    string    `json:"text,omitempty"`
}
