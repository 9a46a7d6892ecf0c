// Package cli holds what gpufd's commands have in common: flags, the driver,
// exit codes, and output as text or JSON.
package cli
