package keeper

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/kernels/digest"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A Put says which version [Client.Put] makes.
type Put struct {
	Name        string
	Labels      map[string]string
	Parts       int           // of the version in all; 1 if 0
	Transaction string        // shared with the writers of other parts, or "": all parts come by one Put
	Expect      *uint64       // the version that must be current, 0 for none; nil is any
	Timeout     time.Duration // after which the keeper gives an unfinished transaction up; the rest of ctx's time if 0
	Keep        bool          // this process goes on using the parts, as a reader: [Kept].Parts
}

// A Part is one buffer of a version, on one device.
type Part struct {
	Index  int
	Device *cu.Device
	Size   uint64                                         // bytes
	Table  json.RawMessage                                // told to readers, or nil
	Layout string                                         // of the tensors in Table, told to readers, or ""
	Write  func(ctx context.Context, b *vmm.Buffer) error // fills the buffer during the call; it stays Put's, unless Put's error matches [vmm.ErrInUse]
}

// A Kept is the outcome of a Put.
type Kept struct {
	Version uint64   // or 0 while parts of it are missing
	Missing int      // parts that other writers have to deliver
	Digests []string // of the parts of this Put, in their order

	// Parts are mapped read-only, with a lease each, if that was wanted (Put.Keep). The
	// caller owns them.
	Parts []*Attached
}

// Put makes the keeper keep a version. It books each part first, so that nothing is loaded
// that a quota forbids. Then it allocates the part's memory, fills it with zeros, calls
// Part.Write, computes the digest on the device, unmaps the memory and hands it over. The part
// that comes last commits the version.
//
// Before Put unmaps a part's memory, it waits for work that is queued in this process ([cu.Driver.WaitToClose]): until
// ctx ends, or for the time of [cu.WithCloseLimit] if it never does, or if Part.Write or something behind it has failed.
// If that does not suffice, the error matches [vmm.ErrInUse], and from then on the buffer that Part.Write was given is
// the caller's, to close when the work is done.
//
// This process keeps nothing, unless p.Keep is set. Then Put waits for the parts of other
// writers until ctx is done, and attaches to the committed version, without another copy. If
// another version has been committed since, the error matches [ErrNewerVersion], and Kept says
// which version this Put made.
//
// If a device is smaller than the parts for it, Put fails at once, with an [*api.Error] of code too-large.
// If the device has no room, Put waits until ctx is done. Then the error is an [*api.Error] with the
// code no-room that names the processes with the memory. If the keeper dies meanwhile, Put waits for the
// next one and goes on with it. A Put that fails leaves the version before it as it is, with three
// exceptions. After an [*api.Error] with the code unknown the version may be committed later. If ctx ends
// while the last part is handed over, and no keeper says in time what has become of it, the version may
// be committed, too. If all parts were handed over, but this process could not release their memory,
// Kept says what has become of them, without Parts.
func (c *Client) Put(ctx context.Context, p Put, parts ...Part) (Kept, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return Kept{}, err
	}
	if err := checkPut(&p, parts); err != nil {
		return Kept{}, err
	}
	if err := checkRoom(p.Name, parts); err != nil {
		return Kept{}, err
	}
	w := &writer{client: c, put: p, parts: parts}
	panics := true // if Part.Write does, nothing stays booked
	defer func() {
		if panics {
			_ = w.giveUp(nil)
		}
	}()
	kept, err := w.run(ctx)
	panics = false
	return kept, err
}

// run books, writes and delivers all parts.
func (w *writer) run(ctx context.Context) (Kept, error) {
	p, parts := w.put, w.parts
	for _, part := range parts {
		if err := w.book(ctx, part); err != nil {
			return Kept{}, w.giveUp(fmt.Errorf("keeper: booking part %d of %s: %w", part.Index, p.Name, err))
		}
	}
	var kept Kept
	for i, part := range parts {
		a, digest, err := w.write(ctx, w.bookings[i], part)
		if err != nil {
			return Kept{}, w.giveUp(fmt.Errorf("keeper: part %d of %s: %w", part.Index, p.Name, errors.Join(err, w.unreleased)))
		}
		kept.Version, kept.Missing = a.Version, a.Missing
		kept.Digests = append(kept.Digests, digest)
	}
	if w.unreleased != nil {
		return kept, fmt.Errorf("keeper: the parts of %s were handed over, but this process could not release their memory: %w", p.Name, w.unreleased)
	}
	if p.Keep {
		err := w.keep(ctx, parts, &kept)
		return kept, err
	}
	return kept, nil
}

func checkPut(p *Put, parts []Part) error {
	if p.Parts == 0 {
		p.Parts = 1
	}
	if len(parts) == 0 || len(parts) > p.Parts {
		return fmt.Errorf("keeper: %s to put of a version of %d", plain.Count(len(parts), "part"), p.Parts)
	}
	for i, part := range parts {
		switch other := slices.IndexFunc(parts[:i], func(p Part) bool { return p.Index == part.Index }); {
		case part.Device == nil || part.Write == nil || part.Size == 0:
			return fmt.Errorf("keeper: part %d needs a device, a size and a function that writes it", part.Index)
		case part.Index < 0 || part.Index >= p.Parts:
			return fmt.Errorf("keeper: a part of index %d of %d parts: want 0 to %d", part.Index, p.Parts, p.Parts-1)
		case other >= 0:
			return fmt.Errorf("keeper: parts %d and %d of this Put both have index %d: each part needs one of its own", other, i, part.Index)
		}
		if len(part.Table) > protocol.MaxTable {
			return fmt.Errorf("keeper: the table of part %d has %d bytes; %d are allowed: it has too many names, or too much metadata", part.Index, len(part.Table), protocol.MaxTable)
		}
	}
	if p.Transaction == "" {
		if len(parts) != p.Parts {
			return fmt.Errorf("keeper: %d of %d parts without a name for their transaction: the writers of the others could not find it", len(parts), p.Parts)
		}
		p.Transaction = state.Private + rand.Text()
	}
	return nil
}

// checkRoom refuses what can never fit: parts that are larger than the whole device.
func checkRoom(name string, parts []Part) error {
	want := map[cu.UUID]uint64{}
	for _, part := range parts {
		id := part.Device.UUID()
		if want[id] += part.Size; want[id] < part.Size {
			want[id] = math.MaxUint64
		}
		total, err := part.Device.TotalMemory()
		if err == nil && want[id] > total {
			return &api.Error{Code: api.TooLarge, Message: fmt.Sprintf("%s wants %d bytes of device %s, which has %d: it can never fit; spread it over several devices, or put less", name, want[id], id, total)}
		}
	}
	return nil
}

// A writer carries out one Put.
type writer struct {
	client   *Client
	put      Put
	parts    []Part
	bookings []*protocol.Booking
	done     int // bookings that are delivered

	unreleased error // why this process still has memory of parts
}

// book books a part, with the next keeper if this one dies meanwhile.
func (w *writer) book(ctx context.Context, part Part) error {
	p := w.put
	for {
		until := p.Timeout
		if end, ok := ctx.Deadline(); ok && until == 0 {
			until = time.Until(end)
		}
		b, err := w.client.conn().Book(ctx, protocol.Request{
			Name: p.Name, Transaction: p.Transaction, Parts: p.Parts, Part: part.Index, Labels: p.Labels, Expect: p.Expect,
			Device: part.Device.UUID().String(), Kind: part.Device.Driver().Kind().String(), Bytes: part.Size,
		}, until)
		if err == nil {
			w.bookings = append(w.bookings, b)
			return nil
		}
		if !errors.Is(err, sock.ErrPeerLost) {
			return err
		}
		if err := w.again(ctx); err != nil {
			return lostKeeper(err)
		}
	}
}

func lostKeeper(err error) error {
	return fmt.Errorf("the keeper was lost, and no other has taken the part: %w", err)
}

// goodbye is how long a failed Put tries to tell the keeper.
const goodbye = time.Second

// giveUp cancels what was not delivered.
func (w *writer) giveUp(err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	for _, b := range w.bookings[w.done:] {
		if b.Cancel(ctx) != nil && b.Renew(ctx) == nil { // it was booked over an earlier connection
			_ = b.Cancel(ctx) // else the keeper gives it up when its time is over
		}
	}
	return err
}

// write makes a part and hands it over.
func (w *writer) write(ctx context.Context, b *protocol.Booking, part Part) (protocol.Reply, string, error) {
	buf, err := w.room(ctx, part)
	if err != nil {
		return protocol.Reply{}, "", err
	}
	panics := true
	defer func() {
		if panics {
			_ = buf.Close()
		}
	}()
	digest, err := fill(ctx, buf, part)
	panics = false
	if err != nil {
		return protocol.Reply{}, "", errors.Join(err, abandon(buf))
	}
	d, files, err := buf.Export()
	if err != nil {
		return protocol.Reply{}, "", errors.Join(err, abandon(buf))
	}
	if err := unmap(ctx, buf); err != nil { // else nothing here can write it any more
		return protocol.Reply{}, "", errors.Join(err, sock.CloseFiles(files))
	}
	released := make(chan error, 1)
	go func() { released <- buf.Close() }() // while the part is handed over: no reader waits for it
	defer func() { w.unreleased = errors.Join(w.unreleased, <-released) }()
	defer sock.CloseFiles(files)
	for {
		a, err := b.Deliver(ctx, protocol.Delivery{Memory: protocol.Describe(d), Files: files, Digest: digest, Layout: part.Layout, Table: part.Table})
		if err == nil {
			w.done++
			return a, digest, nil
		}
		if !errors.Is(err, sock.ErrPeerLost) {
			if !hasCome(b, err) {
				return a, "", err
			}
		} else if err := w.again(ctx); err != nil {
			return a, "", lostKeeper(err)
		}
		if b.Came != nil {
			w.done++
			return *b.Came, digest, nil
		}
	}
}

// unmap unmaps the memory of a part that Write has filled, behind all queued work. Memory in use stays
// mapped, and no second wait follows.
func unmap(ctx context.Context, buf *vmm.Buffer) error {
	err := buf.Device().Driver().WaitToClose(ctx, "the part's memory")
	if err == nil {
		err = buf.Unmap()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, vmm.ErrInUse):
		return left(buf, err)
	default:
		return errors.Join(err, abandon(buf))
	}
}

// abandon closes the memory of a part that is not handed over. Kernels of Write may still run, so it waits for them.
func abandon(buf *vmm.Buffer) error {
	if err := buf.Close(); err != nil {
		return left(buf, err)
	}
	return nil
}

// left says that the memory of a part stays with this process, and why.
func left(buf *vmm.Buffer, err error) error {
	return fmt.Errorf("this process keeps the part's memory, %d bytes at %s; close the buffer that Write was given when its work is done: %w", buf.Size(), buf.Ptr(), err)
}

// hasCome asks whether the keeper has the part, after an error that may have kept its answer from
// this process.
func hasCome(b *protocol.Booking, err error) bool {
	var no *api.Error
	if errors.As(err, &no) { // the keeper has answered
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	return b.Renew(ctx) == nil && b.Came != nil
}

// fill writes a part and returns its digest.
func fill(ctx context.Context, buf *vmm.Buffer, part Part) (string, error) {
	primary, err := part.Device.PrimaryContext()
	if err != nil {
		return "", err
	}
	defer primary.Close()
	if err := cu.Fill(primary, buf, uint8(0), buf.Size()); err != nil {
		return "", err
	}
	if err := part.Write(ctx, buf); err != nil {
		return "", err
	}
	if err := primary.Synchronize(ctx); err != nil {
		return "", err
	}
	return Digest(ctx, primary, buf.Ptr(), buf.Size())
}

// errNoContext says that there is no context to compute a digest in.
var errNoContext = plain.ErrorOf("keeper: no context to compute a digest in: it is nil", cu.ErrClosed)

// Digest computes the digest of device memory that writers declare and readers verify:
// gpufd-d1, a colon and 32 hexadecimal digits.
func Digest(ctx context.Context, c *cu.Context, at cu.DevicePtr, size uint64) (string, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return "", err
	}
	if c == nil {
		return "", errNoContext
	}
	k, err := digest.Load(c)
	if err != nil {
		return "", err
	}
	defer k.Close()
	d, err := k.Digest(ctx, c.NullStream(), at, size)
	if err != nil {
		return "", err
	}
	return digest.Algorithm + ":" + d.String(), nil
}

// roomPause is how long a Put without room waits before it tries again.
const roomPause = 200 * time.Millisecond

// room allocates the memory of a part, and waits until there is some.
func (w *writer) room(ctx context.Context, part Part) (*vmm.Buffer, error) {
	for {
		buf, err := vmm.New(part.Device, part.Size)
		if !errors.Is(err, cu.ErrOutOfMemory) {
			return buf, err
		}
		select {
		case <-ctx.Done():
			return nil, w.noRoom(part, err)
		case <-time.After(roomPause):
		}
	}
}

// noRoom returns an error that names the processes with memory of the part's device.
func (w *writer) noRoom(part Part, err error) error {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	no := &api.Error{Code: api.NoRoom, Message: fmt.Sprintf("device %s has no room for %d bytes", part.Device.UUID(), part.Size)}
	names, listErr := w.client.List(ctx)
	if listErr != nil {
		names = nil // then the error names no process
	}
	var uses []Use
	for _, n := range names {
		uses = append(uses, UsesOf(w.others(n), part.Device.UUID())...)
	}
	no.Message += inTheWay(uses)
	for _, u := range uses {
		no.Holders = append(no.Holders, u.Holders...)
	}
	no.Message += fmt.Sprintf(": %v", err)
	return no
}

// namedUses is how many uses a message names: the largest.
const namedUses = 3

// inTheWay names the largest uses of a device for people, and counts the others.
func inTheWay(uses []Use) (text string) {
	largest := slices.Clone(uses)
	slices.SortStableFunc(largest, func(a, b Use) int { return cmp.Compare(b.Bytes, a.Bytes) })
	for _, u := range largest[:min(len(largest), namedUses)] {
		text += "; " + u.String()
	}
	if more := largest[min(len(largest), namedUses):]; len(more) > 0 {
		var bytes uint64
		for _, u := range more {
			bytes += u.Bytes
		}
		text += fmt.Sprintf("; and %d more, with %d bytes", len(more), bytes)
	}
	return text
}

// others returns a name without what this Put is writing itself.
func (w *writer) others(n api.Info) api.Info {
	own := func(part int) bool { return slices.ContainsFunc(w.parts, func(p Part) bool { return p.Index == part }) }
	n.Pending = slices.Clone(n.Pending)
	for i := range n.Pending {
		if t := &n.Pending[i]; n.Name == w.put.Name && t.Transaction == w.put.Transaction {
			t.Devices = slices.DeleteFunc(slices.Clone(t.Devices), func(p state.PartOn) bool { return own(p.Part) })
			t.Writers = slices.DeleteFunc(slices.Clone(t.Writers), func(h api.Holder) bool { return own(h.Part) })
		}
	}
	return n
}

// again renews the tickets with the keeper that follows a lost one.
func (w *writer) again(ctx context.Context) error {
	var err error
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(pause):
		}
		var no *api.Error
		if err = w.renew(ctx); err == nil || errors.As(err, &no) {
			return err
		}
	}
}

func (w *writer) renew(ctx context.Context) error {
	for _, b := range w.bookings[w.done:] {
		if err := b.Renew(ctx); err != nil {
			return err
		}
	}
	return nil
}
