package share

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// A host is a server at which visits are made. Another consumer has another offer's lease.
type host struct {
	*Server
	other     *served
	bystander *Attachment
}

// hosting is a host that takes opts.
func hosting(t *testing.T, dev *cu.Device, buf *vmm.Buffer, opts ...ListenOption) host {
	t.Helper()
	srv := listen(t, opts...)
	other := serveAs(t, srv, "other", buf, ReadOnly)
	h := host{srv, other, attached(t, srv, "other", dev)}
	other.await(t, Mapped, 1)
	return h
}

// requireUnharmed checks that the other consumer is unharmed.
func (h host) requireUnharmed(t *testing.T) {
	t.Helper()
	require.NoError(t, h.bystander.Progress(soon(t), 1, 2))
	h.other.await(t, Progress, 1)
	require.Empty(t, h.other.of(Ended))
	require.NoError(t, h.bystander.Err())
}

// requireEnd is the error that an observer hears of the visit, which had a lease or had not.
func (h host) requireEnd(t *testing.T, v visit, leased bool) error {
	t.Helper()
	if leased {
		return v.offer.await(t, Ended, 1).Err
	}
	return h.other.await(t, PeerRefused, 1).Err
}

// A visit is what an honest consumer says and hears, to its good verdict. After so many lines
// it has a lease.
type visit struct {
	lines  []line
	leased int
	offer  *served // that it has a lease of
}

// visits are the ways to come to an offer, in which a consumer says every record that it may.
func visits(dev *cu.Device, buf *vmm.Buffer, m *Legacy) map[string]func(*testing.T, *Server) visit {
	ask, mapped, good := say(wants(dev)), say(isMapped(buf)), say(wire.Verdict{OK: true})
	working, offer := say(wire.Progress{Done: 1, Total: 2}), hear(wire.Offer{})
	return map[string]func(*testing.T, *Server) visit{
		"offered": func(t *testing.T, srv *Server) visit {
			s := put(t, srv, buf, WithVerdict())
			return visit{[]line{ask, offer, working, mapped, working, good}, 2, s}
		},
		"expected": func(t *testing.T, srv *Server) visit {
			srv.Expect("data")
			s := newServed(srv)
			begin := do(func(conn *sock.Conn) {
				awaitRead(t, conn)
				s.start(t, "data", func(ctx context.Context) error {
					return srv.Offer(ctx, "data", buf, ReadOnly, OnEvent(s.see), WithVerdict())
				})
			})
			return visit{[]line{ask, begin, offer, working, mapped, good}, 3, s}
		},
		"prepared": func(t *testing.T, srv *Server) visit {
			p, s := prepared(t, srv, "data", buf, ReadOnly)
			begin := do(func(conn *sock.Conn) {
				awaitRead(t, conn)
				s.start(t, "data", p.Offer)
			})
			return visit{[]line{ask, offer, begin, hear(wire.Publish{}), working, mapped, working, good}, 2, s}
		},
		"legacy": func(t *testing.T, srv *Server) visit {
			s := serveLegacy(t, srv, m)
			return visit{[]line{ask, offer, working, say(wire.Mapped{Generation: m.Generation()}), hear(wire.Confirm{}), working, good}, 2, s}
		},
	}
}

// awaitRead waits until the peer has read everything.
func awaitRead(t *testing.T, conn *sock.Conn) {
	t.Helper()
	own := ok(conn.File())(t)
	defer own.Close()
	raw := ok(own.SyscallConn())(t)
	require.Eventually(t, func() bool {
		unread, err := -1, error(nil)
		require.NoError(t, raw.Control(func(fd uintptr) { unread, err = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ) }))
		require.NoError(t, err)
		return unread == 0
	}, 10*time.Second, 100*time.Microsecond)
}

// eachMoment runs f for every line of every visit, each at a host of its own.
func eachMoment(t *testing.T, f func(t *testing.T, h host, v visit, i int), opts ...ListenOption) {
	dev, ctx := leavesNothing(t)
	buf, m := newBuffer(t, ctx, 1), newLegacy(t, ctx, 1)
	for name, comes := range visits(dev, buf, m) {
		for i, n := 0, 1; i < n; i++ {
			t.Run(fmt.Sprintf("%s, %d", name, i), func(t *testing.T) {
				h := hosting(t, dev, buf, opts...)
				v := comes(t, h.Server)
				n = len(v.lines)
				f(t, h, v, i)
			})
		}
	}
}

// requireGoodEnd checks that a consumer that says lines has found the memory good.
func (h host) requireGoodEnd(t *testing.T, v visit, lines []line) {
	t.Helper()
	conn := dialed(t, h.Server)
	require.NoError(t, play(soon(t), conn, lines))
	last := ok(verdictOf(soon(t), conn))(t)
	require.Nil(t, last, "there is nothing to be said")
	require.NoError(t, h.requireEnd(t, v, true))
	require.Len(t, v.offer.of(Verdict), 1)
	require.NoError(t, v.offer.of(Verdict)[0].Err)
	require.Empty(t, h.other.of(PeerRefused))
	h.requireUnharmed(t)
}

// A server ignores what a later consumer says that may be ignored, wherever it says so.
func TestServerIgnoresWhatItMay(t *testing.T) {
	eachMoment(t, func(t *testing.T, h host, v visit, i int) {
		if i == 0 {
			h.requireGoodEnd(t, v, everywhere(withMore(v.lines), invented(lowerFlags)))
			return
		}
		h.requireGoodEnd(t, v, slices.Insert(v.lines, i, line{says: invented(ignorable)}))
	})
}

// A server does not go on with a consumer that says what the server would have to understand,
// wherever that comes: it names that to the consumer and to observers. Others go on.
func TestServerRefusesByName(t *testing.T) {
	for what := range strangers(0) {
		t.Run(what, func(t *testing.T) {
			eachMoment(t, func(t *testing.T, h host, v visit, i int) {
				s := strangers(v.lines[i].typ())[what]
				if v.lines[i].hears != 0 || s.instead && v.lines[i].says == nil {
					return // nobody speaks
				}
				conn := dialed(t, h.Server)
				require.NoError(t, play(soon(t), conn, append(v.lines[:i:i], line{says: s.record(v.lines[i].says)})))
				no := heard(t, conn).(wire.Refuse)
				require.Equal(t, RefusedUnsupported, no.Code)
				require.Contains(t, no.Text, s.names)
				require.NoError(t, conn.Close())
				err := h.requireEnd(t, v, i >= v.leased)
				require.ErrorIs(t, err, ErrUnsupported)
				require.ErrorContains(t, err, s.names)
				require.NotErrorIs(t, err, ErrStillOpen)
				require.Empty(t, v.offer.of(Verdict))
				h.requireUnharmed(t)
			})
		})
	}
}

// A record that a server ignores does not make it wait any longer.
func TestServerWaitsNoLongerForWhatItIgnores(t *testing.T) {
	_, ctx, srv := listening(t, WithTimeout(brief))
	s := put(t, srv, newBuffer(t, ctx, 1))
	require.True(t, insist(soon(t), dialed(t, srv)), "before it was let alone")
	require.ErrorIs(t, s.await(t, PeerRefused, 1).Err, ErrTimeout)
}
