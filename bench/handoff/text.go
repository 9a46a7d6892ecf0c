package main

import (
	"fmt"
	"strings"

	"github.com/gpufd/gpufd/bench/internal/rival"
)

// The rivals that claims are about, by their names on the command line.
const (
	ours       = "gpufd"
	oursBefore = "gpufd-before"
	cBefore    = "c-before"
)

const handoffText = `From the buffer being ready in one process to its knowing that another has it mapped with access set. Every
buffer is new and filled before (in Python only its ends are written), and the other process finds a new number at both of its ends,
or it does not count.

The rivals take turns within each iteration, beginning with another in each. Each is a pair of processes of its own; the one that
takes is woken before the buffer is made. In its turn each makes two handoffs: the first finds processors asleep and caches full of
the others' work, the next does not.

Steps are medians. The producer's are beforehand, but for offer, send and reply, and for export where a rival exports inside the time;
close, unmap and release come after it, on both sides. The consumer's are inside the time, but those of gpufd begin when its offer is
prepared: what is not done when the buffer is ready is inside. Its attach is what is left after that. The reply begins with the
consumer's acknowledgement, and is left out where that is an answer to the offer alone. Steps overlap, and waking up is none, so they
do not add up to the whole. A p95 or p99 of too few handoffs is left out.

`

// known says what the rivals do, by their names on the command line.
var known = map[string]string{
	ours:          "package share, read-only; prepares its offer, then writes the data and waits for the device, while the consumer imports",
	oursBefore:    "the same, but that it offers when the data is there: it exports and waits for the device beforehand, as c-before does",
	"gpufd-plain": "the same as gpufd-before, but that it waits for the device inside the time, as a program that asks for nothing",
	cBefore:       "C, read-write; exports and waits for the device beforehand",
	"c-inside":    "the same, but that it exports inside the time",
	"c-legacy":    "C, cuMemAlloc and cuIpcGetMemHandle, read-write; waits for the device beforehand",
	"cupy":        "CuPy's legacy IPC handles over a multiprocessing pipe",
	"torch":       "a tensor, sent as torch.multiprocessing sends it",

	"cuda-core-before": "a buffer of a memory pool, exported beforehand",
	"cuda-core-object": "the same, sent as cuda.core's introduction does",
}

// about is a line on a rival.
func about(r *rival.Rival) string {
	what := known[r.Name]
	if what != "" {
		what = "; " + what
	}
	return fmt.Sprintf("- **%s**: %s%s.\n", r.Name, r.Info, what)
}

// leftOut says who is missing.
func leftOut(absent []string) string {
	if len(absent) == 0 {
		return ""
	}
	return "\nNot measured, or not further:\n\n- " + strings.Join(absent, "\n- ") + "\n"
}
