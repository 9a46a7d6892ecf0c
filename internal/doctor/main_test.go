package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/cu/sys"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) == "" && os.Getenv(socketEnv) == "" { // it is no child
		os.Setenv("GPUFD_SOFT_IMEX", "1") // so that nothing is to be found, unless a test breaks it
		os.Unsetenv("CUDA_VISIBLE_DEVICES")
	}
	cutest.Main(m, cutest.Children{"probe": childPatient, "run": childRun, "with": childWith, "offer": childOffer, "listen": childListen, "mapped": childMapped})
}

// Variables that break something in a probed process. A fault is "ROLE FUNCTION RESULT", where a result of
// hang never comes; more than one are separated by commas. A role's environment is K=V.
const (
	roleEnv   = testenv.Prefix + "ROLE" // owner or reader
	faultsEnv = testenv.Prefix + "FAULTS"
	changeEnv = testenv.Prefix + "CHANGE_" // and the role
	socketEnv = testenv.Prefix + "SOCKET"
	limitEnv  = testenv.Prefix + "LIMIT"
	filterEnv = testenv.Prefix + "FILTER"
	uidsEnv   = testenv.Prefix + "UID"
	nameEnv   = testenv.Prefix + "NAME"
)

// childPatient is a process of doctor, with what is broken.
func childPatient() error {
	role := os.Getenv(roleEnv)
	if k, v, ok := strings.Cut(os.Getenv(changeEnv+role), "="); ok {
		os.Setenv(k, v)
	}
	if strings.Contains(os.Getenv(faultsEnv), " ") {
		cutest.ExpectLeaks() // what cannot be given back for a fault
	}
	return RunChild(openBroken)
}

// openBroken opens the driver with the faults of this role.
func openBroken() (*cu.Driver, error) {
	if os.Getenv("GPUFD_DRIVER") == "cuda" && cutest.Kind() == cu.CUDA && os.Getenv(faultsEnv) == "" {
		return cu.Open()
	}
	return cutest.Open(cu.WithHook(func(call sys.Call, next func() sys.CUresult) sys.CUresult {
		for fault := range strings.SplitSeq(os.Getenv(faultsEnv), ",") {
			f := strings.Fields(fault)
			if len(f) != 3 || f[0] != os.Getenv(roleEnv) || f[1] != strings.TrimSuffix(call.Symbol(), "_v2") {
				continue
			}
			if f[2] == "hang" {
				select {}
			}
			n, _ := strconv.Atoi(f[2])
			return sys.CUresult(n)
		}
		return next()
	}))
}

// config is a Config whose processes are this binary.
func config(t *testing.T) Config {
	t.Helper()
	return configAt(t.TempDir())
}

func configAt(dir string) Config {
	role := "reader"
	return Config{
		Child: func() *exec.Cmd {
			role = map[string]string{"reader": "owner", "owner": "reader"}[role] // which start in turn
			cmd := cutest.Child(context.Background(), "probe", roleEnv+"="+role)
			cmd.Stderr = os.Stderr
			return cmd
		},
		Open: openBroken, Driver: "soft", Socket: dir + "/gpufd/producer.sock", Timeout: 30 * time.Second,
	}
}

// childRun is a whole run of doctor in this environment: its rows come as JSON.
func childRun() error {
	if n, _ := strconv.ParseUint(os.Getenv(limitEnv), 10, 64); n > 0 {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}); err != nil {
			return err
		}
	}
	if os.Getenv(filterEnv) != "" {
		if err := denyGetfd(); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(Run(context.Background(), configAt(os.Getenv(socketEnv))))
}

func childWith() error {
	c := configAt(os.TempDir())
	c.UIDs = testUIDs()
	return json.NewEncoder(os.Stdout).Encode(With(context.Background(), c, os.Getenv(socketEnv)))
}

func testUIDs() []uint32 {
	if n, err := strconv.Atoi(os.Getenv(uidsEnv)); err == nil {
		return []uint32{uint32(n)}
	}
	return nil
}

// childOffer offers until its standard input ends.
func childOffer() error {
	drv, err := openBroken()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if name := os.Getenv(nameEnv); name != "" {
		return produce(ctx, drv, name)
	}
	return Offer(ctx, drv, os.Getenv(socketEnv), Config{UIDs: testUIDs()}, func() { fmt.Println("ready") })
}

// produce offers memory as a program does that knows nothing of doctors.
func produce(ctx context.Context, drv *cu.Driver, name string) (err error) {
	buf, err := vmm.New(drv.Devices()[0], size)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, buf.Close()) }()
	srv, err := share.Listen(os.Getenv(socketEnv), nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, srv.Close()) }()
	memory, files, err := buf.Export()
	if err != nil {
		return err
	}
	standing, err := srv.Offer(name, share.Descriptors{Memory: memory, Files: files}, nil)
	if err != nil {
		return errors.Join(err, sock.CloseFiles(files))
	}
	fmt.Println("ready")
	<-ctx.Done()
	return standing.Close()
}

// childListen makes a listener of descriptor 3, which outlives it.
func childListen() error {
	return errors.Join(unix.Bind(3, &unix.SockaddrUnix{Name: os.Getenv(socketEnv)}), unix.Listen(3, 8))
}
