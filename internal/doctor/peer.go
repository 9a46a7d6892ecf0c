package doctor

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// With finds out whether this process, or c.As, can share with target: the pid of a process,
// or a socket. For a process it compares what the kernel tells of both; with a socket of
// [Offer] it shares 2 MiB. It attaches to other producers only if c.Attach names an offer,
// because for them it is a consumer.
func With(ctx context.Context, c Config, target string) []Row {
	v := &run{Config: c}
	defer v.end()
	if IsProcess(target) {
		v.timed(ctx, func(ctx context.Context) []Row { return v.withProcess(ctx, target) })
		return v.rows
	}
	v.timed(ctx, func(ctx context.Context) []Row { return v.withSocket(ctx, target) })
	return v.rows
}

// peerRow returns a row about the other side.
func peerRow(r Row) Row {
	r.Peer = true
	return r
}

func (v *run) withProcess(ctx context.Context, pid string) []Row {
	as := cmp.Or(v.As, "self")
	me, err := identityOf(as)
	if err != nil {
		return []Row{peerRow(row("peer", Fail, "", "process %s: %v", as, err))}
	}
	other, err := identityOf(pid)
	if err != nil {
		status := Unknown
		if errors.Is(err, os.ErrNotExist) {
			status = Fail
		}
		return []Row{peerRow(row("peer", status, "", "process %s: %v", pid, err))}
	}
	rows := []Row{peerRow(row("peer", OK, "", "process %s is there", pid))}
	rows = append(append(rows, compare(me, other, v.UIDs)...), v.withDevices(ctx, as, pid))
	return append(rows, peerRow(row("memory-with", Unknown, "", "not tried: it takes a socket at which the process listens: --with SOCKET")))
}

// withDevices asks a process with the other's environment which devices it sees.
func (v *run) withDevices(ctx context.Context, as, pid string) Row {
	mine, err := driverEnv(as)
	theirs, terr := driverEnv(pid)
	if err = errors.Join(err, terr); err != nil {
		return peerRow(row("devices-common", Unknown, "", "%s", cli.OneLine(err)))
	}
	v.owner = v.withEnv(mine).start("process with the devices of this side")
	v.reader = v.withEnv(theirs).start("process with the devices of the other side")
	v.openBoth(ctx)
	for _, p := range []*probe{v.owner, v.reader} {
		if p.err != nil {
			return peerRow(failed("devices-common", Fail, p.err, facts{}))
		}
	}
	return compareDevices(uuids(v.owner.says.Devices), uuids(v.reader.says.Devices))
}

func uuids(devices []deviceInfo) (all []cu.UUID) {
	for _, d := range devices {
		all = append(all, d.UUID)
	}
	return all
}

// deviceVariables decide which devices a process sees.
var deviceVariables = []string{"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GPUFD_SOFT_DEVICES", "GPUFD_SOFT_DIR"}

// driverEnv returns the variables of a process that decide which devices it sees.
func driverEnv(pid string) (env []string, err error) {
	b, err := os.ReadFile(filepath.Join("/proc", pid, "environ"))
	for _, line := range strings.Split(string(b), "\x00") {
		if name, _, ok := strings.Cut(line, "="); ok && slices.Contains(deviceVariables, name) {
			env = append(env, line)
		}
	}
	if pid == "self" || pid == strconv.Itoa(os.Getpid()) { // which may have changed them since it began
		env = nil
		for _, name := range deviceVariables {
			if value, set := os.LookupEnv(name); set {
				env = append(env, name+"="+value)
			}
		}
	}
	return env, err
}

// withEnv makes children start with these variables in place of deviceVariables.
func (c Config) withEnv(env []string) Config {
	start := c.Child
	c.Child = func() *exec.Cmd {
		cmd := start()
		if cmd.Env == nil {
			cmd.Env = os.Environ()
		}
		cmd.Env = slices.DeleteFunc(cmd.Env, func(line string) bool {
			name, _, _ := strings.Cut(line, "=")
			return slices.Contains(deviceVariables, name)
		})
		cmd.Env = append(cmd.Env, env...)
		return cmd
	}
	return c
}

// withSocket attaches to the offer of another doctor, or to c.Attach.
func (v *run) withSocket(ctx context.Context, path string) []Row {
	conn, err := sock.Dial(ctx, path)
	if err != nil {
		return []Row{peerRow(failed("peer", Fail, newFault(err), facts{}))}
	}
	peer := conn.Peer()
	other, unknown := identityOfPeer(conn)
	_ = conn.Close()
	rows := []Row{peerRow(row("peer", OK, "", "%s listens at %s", peer, path))}
	v.reader = v.here(ctx)
	if v.reader.err != nil {
		return append(rows, failed("driver", Fail, v.reader.err, facts{}))
	}
	a, _, f := v.reader.ask(ctx, request{Do: "attach", Path: path, Name: cmp.Or(v.Attach, OfferName), UIDs: v.UIDs, Count: int(v.most(ctx).Milliseconds())})
	switch {
	case a.Greeting != nil:
		rows = append(rows, v.compareDoctor(ctx, *a.Greeting)...)
	case f == nil || !slices.Contains([]string{"socket-foreign", "socket-dead", "peer-silent", "timeout"}, f.Mark): // it is a peer
		rows = append(append(rows, v.compareWith(other, unknown)...), v.offeredDevices(a.Devices)...)
	}
	switch {
	case f == nil:
		return append(rows, peerRow(row("memory-with", OK, "", "%s", a.Seen)))
	case f.Mark == "peer" && v.Attach == "" && len(a.Names) > 0:
		return append(rows, peerRow(row("memory-with", Unknown, "", "it offers %s: attach to one with --attach, as a consumer of it", list(a.Names))))
	case f.Mark == "peer" && v.Attach == "":
		return append(rows, peerRow(row("memory-with", Unknown, "", "it offers nothing now")))
	}
	return append(rows, peerRow(failed("memory-with", Fail, f, facts{})))
}

// compareWith compares this process with a peer that has not greeted. err is why the kernel does
// not tell of it.
func (v *run) compareWith(other identity, err error) []Row {
	if err != nil {
		return []Row{peerRow(row("pid-equal", Unknown, "", "not compared, nor users, /dev/shm and networks: %v", err))}
	}
	rows, _ := v.compareAs(other)
	return rows
}

// compareAs compares c.As, or this process, with another; false if nothing is known of it.
func (v *run) compareAs(other identity) ([]Row, bool) {
	as, err := identityOf(cmp.Or(v.As, "self"))
	if err != nil {
		return []Row{peerRow(row("peer", Fail, "", "process %s: %v", v.As, err))}, false
	}
	return compare(as, other, v.UIDs), true
}

// offeredDevices says whether the devices of all that is offered are seen here.
func (v *run) offeredDevices(offered []deviceInfo) []Row {
	var there, hidden []string
	for _, u := range uuids(offered) {
		if !slices.Contains(there, u.String()) {
			there = append(there, u.String())
		}
	}
	if len(there) == 0 {
		return nil
	}
	for _, u := range there {
		if !slices.ContainsFunc(v.reader.says.Devices, func(d deviceInfo) bool { return d.UUID.String() == u }) {
			hidden = append(hidden, u)
		}
	}
	if len(hidden) > 0 {
		return []Row{peerRow(row("devices-common", Fail, "gpu-hidden", "it offers memory of %s, which this process does not see", list(hidden)))}
	}
	return []Row{peerRow(row("devices-common", OK, "", "it offers memory of %s, which this process sees", list(there)))}
}

// most returns how long the other side may take. It leaves time to report a timeout, and to
// try legacy IPC.
func (v *run) most(ctx context.Context) time.Duration {
	left := v.Timeout
	if end, ok := ctx.Deadline(); ok {
		left = time.Until(end)
	}
	return left * 3 / 4
}

// compareDoctor compares this process with the one that greeted, and opens its legacy memory and
// event.
func (v *run) compareDoctor(ctx context.Context, g hello) []Row {
	me, err := identityOf("self")
	if err != nil {
		return []Row{peerRow(row("pid-equal", Unknown, "", "%v", err))}
	}
	facts := facts{
		samePID:   me.PID == g.PID && me.Namespaces["pid"] != g.Namespaces["pid"],
		sameShm:   me.Shm != "" && me.Shm == g.Shm,
		otherUser: me.UID != g.UID || me.UIDMap != g.UIDMap,
	}
	rows, ok := v.compareAs(g.identity)
	if !ok {
		return rows
	}
	rows = append(rows, compareDevices(uuids(v.reader.says.Devices), g.Devices))
	for _, way := range []struct {
		id, do, ok string
		there      bool
	}{
		{"legacy-memory", "open legacy", "2 MiB of the other side were opened and verified", g.Memory != nil},
		{"legacy-event", "open event", "an event of the other side was opened, and happened", g.Event != nil},
	} {
		if !way.there {
			rows = append(rows, peerRow(row(way.id, Unknown, "", "the other side has none to try")))
			continue
		}
		r := row(way.id, OK, "", "%s", way.ok)
		if _, _, f := v.reader.ask(ctx, request{Do: way.do, Device: g.Device, Memory: g.Memory, Event: g.Event, Salt: g.Salt, Read: true}); f != nil {
			r = failed(way.id, legacyStatus(f), f, facts)
		}
		rows = append(rows, peerRow(r))
	}
	return rows
}

// OfferName is the name under which [Offer] offers memory.
const OfferName = "gpufd-doctor"

// Offer listens at path for other doctors, and offers them 2 MiB of the first device, until
// ctx is done. It calls ready once they can attach.
func Offer(ctx context.Context, drv *cu.Driver, path string, c Config, ready func()) (err error) {
	dev, err := drv.Device(0)
	if err != nil {
		return err
	}
	o := &child{drv: drv, have: map[string]any{}}
	defer func() { err = errors.Join(err, o.drop()) }()
	g, buf, err := o.handshake(dev)
	if err != nil {
		return err
	}
	data, err := json.Marshal(g)
	if err != nil {
		return err
	}
	memory, files, err := buf.Export()
	if err != nil {
		return err
	}
	mode := os.FileMode(0o600)
	if len(c.UIDs) > 0 {
		mode = 0o666 // the policy decides
	}
	srv, err := cli.Listen(path, func() (*share.Server, error) {
		return share.Listen(path, &share.ListenOptions{Policy: sock.Policy{UIDs: c.UIDs}, Mode: mode})
	})
	if err != nil {
		return errors.Join(err, sock.CloseFiles(files))
	}
	offer, err := srv.Offer(OfferName, share.Descriptors{Memory: memory, Files: files}, &share.OfferOptions{Data: data})
	if err != nil {
		return errors.Join(err, sock.CloseFiles(files), srv.Close())
	}
	ready()
	<-ctx.Done()
	return errors.Join(offer.Close(), srv.Close())
}
