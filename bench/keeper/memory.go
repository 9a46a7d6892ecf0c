package main

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/gpufd/gpufd/cu"
)

// A look is what was in use of the device's memory at one time.
type look struct {
	when      string
	used      uint64 // bytes, as the driver counts those of all processes
	smi       string // the same, as nvidia-smi says
	processes string // that have memory, as nvidia-smi says
}

// lookAt looks at the memory of a device, nvidia-smi first: the driver needs a context to
// count, which takes memory too.
func lookAt(ctx context.Context, dev *cu.Device, when string) (l look, err error) {
	l = look{when: when, smi: smi(ctx, dev, "--query-gpu=memory.used"), processes: smi(ctx, dev, "--query-compute-apps=pid,used_memory")}
	on, err := dev.PrimaryContext()
	if err != nil {
		return l, err
	}
	defer func() { _ = on.Close() }()
	free, total, err := on.MemInfo()
	l.used = total - free
	return l, err
}

// smi is what nvidia-smi answers, in one line.
func smi(ctx context.Context, dev *cu.Device, query string) string {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", "-i", dev.UUID().String(), query, "--format=csv,noheader").Output()
	switch text := strings.Join(strings.Split(strings.TrimSpace(string(out)), "\n"), "; "); {
	case err != nil:
		return "not known"
	case text == "":
		return "none"
	default:
		return text
	}
}

func (l look) row() []string {
	return []string{l.when, l.smi, l.processes, fmt.Sprintf("%d MiB", l.used>>20)}
}

// left is how many of the bytes that were kept are in use when they should be back, as a part
// of them.
func left(looks []look) float64 {
	before, during, after := float64(looks[0].used), float64(looks[1].used), float64(looks[2].used)
	return (after - before) / (during - before)
}
