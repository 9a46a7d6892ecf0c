package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
)

// A usage is what a child uses, and what it counted.
type usage struct {
	footprint
	threads int
	inner
}

// order gives a child an order and returns its answer, less the first word.
func order(p *programs.Process, order string) (answer string, err error) {
	if err := say(p, order); err != nil {
		return "", err
	}
	return awaitAnswer(p, order)
}

// say gives a child an order and does not wait.
func say(p *programs.Process, order string) error {
	p.Out.Forget()
	if _, err := fmt.Fprintln(p.In, order); err != nil {
		<-p.Done
		return fmt.Errorf("%s takes no orders: %w\n%s", p.Name, err, p.Dump())
	}
	return nil
}

// awaitAnswer waits for the answer to an order that has one.
func awaitAnswer(p *programs.Process, order string) (answer string, err error) {
	if order == orderGo {
		return "", nil
	}
	deadline := time.After(programs.Patience)
	for {
		found, changed := p.Out.Find(order)
		if len(found) > 0 {
			_, answer = word(found[0])
			return answer, nil
		}
		select {
		case <-changed:
		case <-p.Done:
			return "", fmt.Errorf("%s ended where it was to %s\n%s", p.Name, order, p.Dump())
		case <-deadline:
			p.Signal(syscall.SIGQUIT) // prints where its goroutines are
			<-p.Done
			return "", fmt.Errorf("%s does not %s within %s\n%s", p.Name, order, programs.Patience, p.Dump())
		}
	}
}

// dismiss ends a child that takes orders, and checks that it leaves nothing
// behind.
func dismiss(p *programs.Process) error {
	_ = p.In.Close() // if it has ended already, its exit code tells
	if code := p.Wait(); code != 0 || len(p.Err.All()) > 0 {
		return fmt.Errorf("%s ended with exit code %d\n%s", p.Name, code, p.Dump())
	}
	return nil
}

// askUsage returns what a child uses now.
func askUsage(p *programs.Process) (v usage, err error) {
	answer, err := order(p, orderUsage)
	if err != nil {
		return v, err
	}
	if err := json.Unmarshal([]byte(answer), &v.inner); err != nil {
		return v, err
	}
	v.footprint = footprintOf(p.T, p.PID())
	v.threads = threads(p.T, p.PID())
	return v, nil
}

// threads counts the threads of a process.
func threads(t testing.TB, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// An allowance is how much more a child may use than before.
type allowance struct {
	fds, threads, resident, addresses int
	processes                         int // that a server watches, each with a descriptor and a goroutine
}

// watching is an allowance for a server that n processes have leases of.
func (a allowance) watching(n int) allowance {
	a.processes = n
	return a
}

// anything is for a child that has not done yet what makes memory and threads
// grow once, and libcuda open descriptors.
var anything = allowance{fds: map[cu.Kind]int{cu.CUDA: 64}[cutest.Kind()], threads: 1 << 20, resident: 1 << 40, addresses: 1 << 60}

// allowed is what a process may have more after n handoffs: far less than a page
// for each, but for the code that qemu-user translates meanwhile; half of what is
// mapped for each, or what threads reserve. The runtime makes a thread when another is
// held up in a call, of which there may be one for each connection, and keeps it.
func allowed(n int) allowance {
	a := allowance{threads: 64, resident: 8 << 20, addresses: max(1<<30, n*int(2*programs.MiB))}
	if cutest.Emulated() {
		a.resident = 64 << 20
	}
	if cutest.RaceDetector {
		a.resident = anything.resident
	}
	return a
}

// over lists what v has more of than before, more than it may.
func (v usage) over(before usage, may allowance) (complaints []string) {
	for _, c := range []struct {
		what                 string
		before, now, allowed int
	}{
		{"descriptors", before.fds, v.fds, may.fds + may.processes},
		{"goroutines", before.Goroutines, v.Goroutines, may.processes},
		{"threads", before.threads, v.threads, may.threads},
		{"bytes of resident memory", before.resident, v.resident, may.resident},
		{"bytes of address space", before.addresses, v.addresses, may.addresses},
	} {
		if c.now > c.before+c.allowed {
			complaints = append(complaints, fmt.Sprintf("%d %s, and before %d", c.now, c.what, c.before))
		}
	}
	return complaints
}

// settle asks the child until it uses no more than before, for as long as the
// grace lasts, and returns what it uses too much of.
func settle(p *programs.Process, before usage, may allowance, grace time.Duration) (v usage, complaints []string) {
	for end := time.Now().Add(grace); ; {
		v, err := askUsage(p)
		if err != nil {
			return v, append(complaints, err.Error())
		}
		complaints = v.over(before, may)
		if len(complaints) == 0 || time.Now().After(end) {
			return v, complaints
		}
	}
}

// String is for logs.
func (v usage) String() string {
	return fmt.Sprintf("%d descriptors, %d goroutines, %d threads, %d KiB resident, %d MiB of addresses",
		v.fds, v.Goroutines, v.threads, v.resident>>10, v.addresses>>20)
}

// tell gives all of them an order, and then waits for the answers. It returns
// what those say who do not obey.
func tell(roles map[string]*programs.Process, order string) (complaints []string) {
	for name, p := range roles {
		if err := say(p, order); err != nil {
			complaints = append(complaints, name+": "+err.Error())
		}
	}
	if len(complaints) > 0 {
		return complaints
	}
	for name, p := range roles {
		if _, err := awaitAnswer(p, order); err != nil {
			complaints = append(complaints, name+": "+err.Error())
		}
	}
	return complaints
}

// complaint makes one error of complaints, if there are any.
func complaint(complaints []string) error {
	if len(complaints) == 0 {
		return nil
	}
	return errors.New(strings.Join(complaints, "\n"))
}
