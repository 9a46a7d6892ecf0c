package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpufd/gpufd/bench/internal/report"
	"github.com/gpufd/gpufd/bench/internal/rival"
)

// A usage is what the kernel has counted of a process, over all its threads that live.
type usage struct {
	threads, mappings int
	run, wait         float64 // ns on a processor, and ready for one
	slices            float64 // times on a processor
	asked, preempted  float64 // times off it
	migrations        float64
	faults            float64
}

// schedule has each rival hand over some more, and reports what its processes did
// meanwhile, for each handoff.
func schedule(ctx context.Context, rivals []*rival.Rival, o options) (report.Table, error) {
	t := report.Table{
		Name: "schedule", Title: "Processes, for each handoff", Text: scheduleText,
		Head: []string{"rival", "process", "threads", "mappings", "run µs", "ready µs", "slices", "asked", "preempted", "migrations", "faults"},
	}
	times := min(o.iterations, 50)
	for _, r := range rivals {
		processes := family(r.Pid())
		var before []usage
		for _, p := range processes {
			before = append(before, usageOf(p))
		}
		for range times {
			if _, err := ask(ctx, r, "handoff %d 1", o.sizes[0]); err != nil {
				return t, err
			}
		}
		for i, p := range processes {
			t.Rows = append(t.Rows, usageOf(p).since(before[i], float64(times)).row(r.Name, i))
		}
	}
	return t, nil
}

// since is what was counted after before, for each of n.
func (u usage) since(before usage, n float64) usage {
	u.run, u.wait = (u.run-before.run)/n, (u.wait-before.wait)/n
	u.slices, u.migrations, u.faults = (u.slices-before.slices)/n, (u.migrations-before.migrations)/n, (u.faults-before.faults)/n
	u.asked, u.preempted = (u.asked-before.asked)/n, (u.preempted-before.preempted)/n
	return u
}

func (u usage) row(name string, i int) []string {
	process := "producer"
	if i > 0 {
		process = "consumer"
	}
	row := []string{name, process, fmt.Sprint(u.threads), fmt.Sprint(u.mappings)}
	for _, x := range []float64{u.run / 1e3, u.wait / 1e3, u.slices, u.asked, u.preempted, u.migrations, u.faults} {
		row = append(row, fmt.Sprintf("%.1f", x))
	}
	return row
}

// family is a process, and behind it those that it and they have started.
func family(pid int) []int {
	found := []int{pid}
	for i := 0; i < len(found); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", found[i]))
		for _, path := range tasks {
			for _, word := range fields(path) {
				if child, err := strconv.Atoi(word); err == nil {
					found = append(found, child)
				}
			}
		}
	}
	return found
}

// usageOf reads what there is: a kernel may count less.
func usageOf(pid int) (u usage) {
	dir := fmt.Sprintf("/proc/%d", pid)
	maps, _ := os.ReadFile(dir + "/maps")
	u.mappings = strings.Count(string(maps), "\n")
	stat, _ := os.ReadFile(dir + "/stat")
	if at := strings.LastIndexByte(string(stat), ')'); at >= 0 {
		u.faults = nth(strings.Fields(string(stat[at+1:])), 7)
	}
	tasks, _ := filepath.Glob(dir + "/task/*")
	for _, task := range tasks {
		u.threads++
		counted := fields(task + "/schedstat")
		u.run, u.wait, u.slices = u.run+nth(counted, 0), u.wait+nth(counted, 1), u.slices+nth(counted, 2)
		u.asked += after(task+"/status", "voluntary_ctxt_switches")
		u.preempted += after(task+"/status", "nonvoluntary_ctxt_switches")
		u.migrations += after(task+"/sched", "se.nr_migrations")
	}
	return u
}

func fields(path string) []string {
	text, _ := os.ReadFile(path)
	return strings.Fields(string(text))
}

// nth is word i as a number, or 0.
func nth(words []string, i int) float64 {
	if i >= len(words) {
		return 0
	}
	x, _ := strconv.ParseFloat(words[i], 64)
	return x
}

// after is the number behind "name:" at the beginning of a line, or 0.
func after(path, name string) float64 {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) == name {
			return nth(strings.Fields(value), 0)
		}
	}
	return 0
}
