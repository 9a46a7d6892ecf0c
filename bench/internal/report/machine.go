package report

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"github.com/gpufd/gpufd/cu"
)

// Commit is the commit that the program was built from, set with
// -ldflags='-X github.com/gpufd/gpufd/bench/internal/report.Commit=…'.
var Commit = "unknown"

// Machine says where, with what and how a measurement was made.
type Machine struct {
	CPU                   string
	Cores                 int
	Kernel, Go            string
	GPU, Driver           string // "none" without a GPU
	Commit, Command, Date string
}

// MachineOf is this machine as drv has it: the software driver uses no GPU, also
// where there is one.
func MachineOf(drv *cu.Driver) Machine {
	m := ThisMachine()
	if drv.Kind() == cu.Soft {
		m.GPU, m.Driver = "none", drv.String()
	}
	return m
}

// ThisMachine describes the machine that it runs on, and this program. Command
// is $BENCH_COMMAND, or else the program's arguments.
func ThisMachine() Machine {
	gpu, driver := gpus()
	return Machine{
		CPU:     cpu(),
		Cores:   runtime.NumCPU(),
		Kernel:  kernel(),
		Go:      fmt.Sprintf("%s %s/%s", runtime.Version(), runtime.GOOS, runtime.GOARCH),
		GPU:     gpu,
		Driver:  driver,
		Commit:  Commit,
		Command: command(),
		Date:    time.Now().UTC().Format("2006-01-02 15:04 UTC"),
	}
}

// cpu is the model's name, which not every architecture tells.
func cpu() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

func kernel() string {
	release, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return "unknown"
	}
	return "Linux " + strings.TrimSpace(string(release))
}

// gpus asks nvidia-smi, which comes with the driver.
func gpus() (gpu, driver string) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").Output()
	if err != nil {
		return "none", "none"
	}
	return parseGPUs(string(out))
}

// parseGPUs reads a line "name, driver" for each GPU.
func parseGPUs(out string) (gpu, driver string) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	gpu, driver, ok := strings.Cut(lines[0], ", ")
	if !ok {
		return "none", "none"
	}
	if n := len(lines); n > 1 {
		gpu = fmt.Sprintf("%d × %s", n, gpu)
	}
	return gpu, strings.TrimSpace(driver)
}

func command() string {
	if c := os.Getenv("BENCH_COMMAND"); c != "" {
		return c
	}
	return strings.Join(os.Args, " ")
}

func (m Machine) table() Table {
	return Table{Title: "Machine", Head: []string{"what", "which"}, Rows: [][]string{
		{"CPU", fmt.Sprintf("%s, %d cores", m.CPU, m.Cores)}, {"GPU", m.GPU}, {"driver", m.Driver}, {"kernel", m.Kernel},
		{"Go", m.Go}, {"commit", m.Commit}, {"date", m.Date},
	}}
}
