package share

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/serve"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// impostor is a producer of the test's own: it takes one connection, reads the
// wish to attach and then does what the script says. The connection is closed
// when the script is over.
func impostor(t *testing.T, script func(conn *sock.Conn)) (path string) {
	t.Helper()
	path = socketPath(t)
	l := ok(sock.Listen(path))(t)
	done := make(chan struct{})
	ctx := soon(t)
	go func() {
		defer close(done)
		conn, err := l.Accept(ctx)
		if err != nil {
			return // the consumer never came
		}
		defer conn.Close()
		if rec, err := conn.Receive(ctx); err == nil {
			_ = rec.Close()
			script(conn)
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		<-done
	})
	return path
}

// A lie is one record of an impostor, with files.
type lie struct {
	record []byte
	files  []*os.File
}

// tell is a script that tells lies and goes when the consumer answers or does.
func tell(t *testing.T, lies ...lie) func(*sock.Conn) {
	return func(conn *sock.Conn) {
		for _, l := range lies {
			if conn.Send(soon(t), l.record, l.files...) != nil {
				return
			}
		}
		if rec, err := conn.Receive(soon(t)); err == nil {
			_ = rec.Close()
		}
	}
}

// A truth is what an honest producer would say, for a test to change.
type truth struct {
	wire.Offer
	files []*os.File
	other *os.File // memory of another size
	pipe  *os.File
}

// truthOf describes a buffer of three chunks.
func truthOf(t *testing.T, ctx *cu.Context) truth {
	t.Helper()
	g := granularity(t, ctx.Device())
	desc, files, err := newBuffer(t, ctx, 3*g, vmm.WithChunkSize(g)).Export()
	require.NoError(t, err)
	_, other, err := newBuffer(t, ctx, 2*g).Export()
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sock.CloseFiles(append([]*os.File{other[0], r, w}, files...))) })
	return truth{wire.Offer{Memory: desc, Access: cu.ReadOnly, Name: "data", FDs: 3}, files, other[0], r}
}

// say makes the record of the offer with change, and its files.
func (tr truth) say(change func(o *wire.Offer), files ...*os.File) lie {
	o := tr.Offer
	if change != nil {
		change(&o)
	}
	return lie{wire.Encode(o), files}
}

// Invariant 2: whatever a producer says, the
// consumer gets an error and keeps nothing.
func TestLyingProducerGetsNothingMapped(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	f := tr.files
	part := func(first, fds int, more func(o *wire.Offer)) func(*wire.Offer) {
		return func(o *wire.Offer) {
			if o.First, o.FDs = first, fds; more != nil {
				more(o)
			}
		}
	}
	begin := tr.say(part(0, 2, nil), f[:2]...)
	desc := func(change func(d *vmm.Descriptor)) []lie {
		return []lie{tr.say(func(o *wire.Offer) { change(&o.Memory) }, f...)}
	}
	for name, c := range map[string]struct {
		lies []lie
		want error
	}{
		"fault 19: no descriptor":             {[]lie{tr.say(nil)}, wire.ErrMalformed},
		"fault 19: too few":                   {[]lie{tr.say(nil, f[:2]...)}, wire.ErrMalformed},
		"fault 20: one too many":              {[]lie{tr.say(nil, f[0], f[1], f[2], f[0])}, wire.ErrMalformed},
		"fault 20: more than chunks":          {[]lie{tr.say(part(0, 4, nil), f[0], f[1], f[2], f[0])}, wire.ErrMalformed},
		"fault 19: none announced, none sent": {[]lie{tr.say(part(0, 0, nil))}, wire.ErrMalformed},
		"fault 25: a pipe":                    {[]lie{tr.say(nil, f[0], tr.pipe, f[2])}, cu.ErrUnknown},
		"fault 26: another allocation":        {[]lie{tr.say(nil, f[0], f[1], tr.other)}, cu.ErrNotSupported},
		"fault 27: wrong magic":               {[]lie{{flaw(tr.Offer, 0, 'X'), f}}, wire.ErrMalformed},
		"fault 27: other version":             {[]lie{{flaw(tr.Offer, 4, 2), f}}, wire.ErrVersion},
		"fault 28: wrong length":              {[]lie{{flaw(tr.Offer, 12, 0xff, 0xff, 0xff, 0xff), f}}, wire.ErrMalformed},
		"fault 29: random bytes":              {[]lie{{noise(500, 3), f}}, wire.ErrMalformed},
		"fault 31: a verdict":                 {[]lie{{wire.Encode(wire.Verdict{OK: true, Text: ""}), nil}}, serve.ErrUnexpected},
		"fault 31: an acknowledgement":        {[]lie{{wire.Encode(wire.Mapped{Generation: 1}), nil}}, serve.ErrUnexpected},
		"a revocation":                        {[]lie{{wire.Encode(wire.Revoke{Text: "x"}), nil}}, ErrRevoked},
		"a refusal":                           {[]lie{{wire.Encode(wire.Refuse{Code: wire.RefusedBusy, Text: "x"}), nil}}, ErrRefused},
		"fault 35: size 0":                    {desc(func(d *vmm.Descriptor) { d.Size = 0 }), vmm.ErrDescriptor},
		"fault 36: larger":                    {desc(func(d *vmm.Descriptor) { d.ChunkSize *= 2; d.Size *= 2 }), cu.ErrNotSupported},
		"fault 37: no multiple":               {desc(func(d *vmm.Descriptor) { d.ChunkSize++ }), vmm.ErrDescriptor},
		"fault 38: overflow":                  {desc(func(d *vmm.Descriptor) { d.ChunkSize = 1 << 63 }), vmm.ErrDescriptor},
		"fault 39: unknown device":            {desc(func(d *vmm.Descriptor) { d.Device[3] ^= 1 }), vmm.ErrDevice},
		"other kind of driver":                {desc(func(d *vmm.Descriptor) { d.Kind = cu.CUDA + cu.Soft - d.Kind }), vmm.ErrKind},
		"fault 40: a fabric handle":           {[]lie{{flaw(tr.Offer, 18, 8), f}}, ErrUnsupported},
		"chunks beyond the limit":             {desc(func(d *vmm.Descriptor) { d.Chunks = vmm.MaxChunks + 1 }), wire.ErrMalformed},
		"other access in the second":          {[]lie{begin, tr.say(part(2, 1, func(o *wire.Offer) { o.Access = cu.ReadWrite }), f[2])}, wire.ErrMalformed},
		"another offer than asked for":        {[]lie{tr.say(func(o *wire.Offer) { o.Name = "other" }, f...)}, serve.ErrUnexpected},
		"fault 31: silence":                   {nil, ErrTimeout},
		"fault 31: silence after the first":   {[]lie{begin}, ErrTimeout},
		"a verdict in between":                {[]lie{begin, {wire.Encode(wire.Verdict{}), nil}}, serve.ErrUnexpected},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			timeout := serve.DefaultTimeout
			if c.want == ErrTimeout {
				timeout = 100 * time.Millisecond
			}
			err := errOf(Attach(soon(t), impostor(t, tell(t, c.lies...)), "data", dev, &AttachOptions{Timeout: timeout}))
			require.ErrorIs(t, err, c.want)
			require.NotErrorIs(t, err, sock.ErrPeerLost)
		})
	}
	for _, lies := range [][]lie{nil, {begin}} { // FAULTS 30: it goes
		path := impostor(t, func(conn *sock.Conn) {
			for _, l := range lies {
				_ = conn.Send(soon(t), l.record, l.files...)
			}
		})
		require.ErrorIs(t, errOf(Attach(soon(t), path, "data", dev, nil)), sock.ErrPeerLost)
	}
	// An offer with less access than was asked for is no lie, but the consumer does not take it.
	path := impostor(t, tell(t, tr.say(nil, f...)))
	require.ErrorIs(t, errOf(Attach(soon(t), path, "", dev, &AttachOptions{Access: cu.ReadWrite})), serve.ErrUnexpected)
}

// After the offer a producer may only show progress, revoke, or go.
func TestBadRecordsOfAnAttachedProducer(t *testing.T) {
	dev, ctx := leavesNothing(t)
	tr := truthOf(t, ctx)
	good := tr.say(nil, tr.files...)
	for name, c := range map[string]struct {
		lie  lie
		want error
	}{
		"another offer":                       {good, sock.ErrTooManyFDs},
		"fault 31: a verdict":                 {lie{wire.Encode(wire.Verdict{OK: true, Text: ""}), nil}, serve.ErrUnexpected},
		"a refusal":                           {lie{wire.Encode(wire.Refuse{Code: wire.RefusedBusy, Text: "x"}), nil}, ErrRefused},
		"fault 29: random bytes":              {lie{noise(99, 2), nil}, wire.ErrMalformed},
		"a revocation with files":             {lie{wire.Encode(wire.Revoke{Text: "x"}), tr.files}, sock.ErrTooManyFDs},
		"a revocation":                        {lie{wire.Encode(wire.Revoke{Text: "x"}), nil}, ErrRevoked},
		"fault 30: progress, and then an end": {lie{wire.Encode(wire.Progress{Done: 1, Total: 1}), nil}, sock.ErrPeerLost},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothing(t)
			said, want := make(chan wire.Message, 1), c.want
			refused := make(chan bool, 1) // by the kernel: no descriptors are taken any more
			att, err := Attach(soon(t), impostor(t, func(conn *sock.Conn) {
				_ = conn.Send(soon(t), good.record, good.files...)
				rec, err := conn.Receive(soon(t)) // mapped
				if err == nil {
					_ = rec.Close()
				}
				err = conn.Send(soon(t), c.lie.record, c.lie.files...)
				refused <- errors.Is(err, unix.EPERM)
				if err == nil && c.want != sock.ErrPeerLost {
					said <- lastWord(t, conn)
				}
			}), "data", dev, nil)
			require.NoError(t, err)
			if <-refused {
				require.NotEmpty(t, c.lie.files)
				want = sock.ErrPeerLost
			}
			require.ErrorIs(t, awaitDone(t, att), want)
			switch want {
			case serve.ErrUnexpected, wire.ErrMalformed, sock.ErrTooManyFDs:
				require.Equal(t, serve.Refusal(att.Err()), <-said, "it is told")
			case ErrRefused, ErrRevoked:
				require.Nil(t, <-said, "it knows")
			}
			require.ErrorIs(t, att.Progress(soon(t), 1, 2), want)
			requireNoise(t, ctx, att.Buffer(), 1)
			require.NoError(t, att.Close())
		})
	}
}
