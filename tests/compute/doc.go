// Package compute tests the programs launch and ring, and what all programs show on a terminal.
package compute
