package share

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/internal/serve"
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
	own, err := conn.File()
	require.NoError(t, err)
	defer own.Close()
	raw, err := own.SyscallConn()
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		unread := -1
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

// A server takes no descriptors, with what it ignores either. Where the kernel refuses them,
// nothing has come.
func TestServerTakesNoDescriptorsWithWhatItIgnores(t *testing.T) {
	null := ok(os.Open(os.DevNull))(t)
	t.Cleanup(func() { require.NoError(t, null.Close()) })
	eachMoment(t, func(t *testing.T, h host, v visit, i int) {
		if v.lines[i].hears != 0 {
			return
		}
		conn := dialed(t, h.Server)
		require.NoError(t, play(soon(t), conn, v.lines[:i]))
		if !sendRaw(t, conn, invented(ignorable), null, 1) {
			require.NoError(t, play(soon(t), conn, v.lines[i:]))
			require.NoError(t, h.requireEnd(t, v, true))
			return
		}
		requireRefusal(t, conn, RefusedRecord, "a descriptor")
		require.NoError(t, conn.Close())
		require.ErrorIs(t, h.requireEnd(t, v, i >= v.leased), sock.ErrTooManyFDs)
		h.requireUnharmed(t)
	})
}

// A server that was refused says nothing more, whatever the code.
func TestServerDoesNotAnswerARefusalByName(t *testing.T) {
	no := say(wire.Refuse{Code: RefusedUnsupported, Text: "type 7"})
	eachMoment(t, func(t *testing.T, h host, v visit, i int) {
		if v.lines[i].hears != 0 {
			return
		}
		conn := dialed(t, h.Server)
		require.NoError(t, play(soon(t), conn, append(v.lines[:i:i], no)))
		if i < v.leased { // with a lease of legacy memory it waits for the consumer to close
			require.ErrorIs(t, errOf(conn.Receive(soon(t))), sock.ErrPeerLost)
		}
		require.NoError(t, conn.Close())
		err := h.requireEnd(t, v, i >= v.leased)
		require.ErrorIs(t, err, ErrRefused)
		require.ErrorIs(t, err, ErrUnsupported)
		h.requireUnharmed(t)
	})
}

// Records that a server ignores count towards the rate, so it refuses a consumer that floods it
// with them, wherever they come.
func TestServerLeavesAFloodOfWhatItIgnores(t *testing.T) {
	const rate = 20
	atOnce := listenOption(func(o *serve.Options) { o.Goodbye = 0 })
	eachMoment(t, func(t *testing.T, h host, v visit, i int) {
		confirms := slices.ContainsFunc(v.lines, func(l line) bool { return l.hears == wire.TypeConfirm })
		if v.lines[i].hears != 0 || confirms { // its flood is read to the end: see TestLegacyConsumerAfterRevoke
			return
		}
		conn := dialed(t, h.Server)
		require.NoError(t, play(soon(t), conn, v.lines[:i]))
		floodIgnored(soon(t), conn, 10*rate)
		requireRefusal(t, conn, RefusedRate, "a flood")
		require.NoError(t, conn.Close())
		require.ErrorIs(t, h.requireEnd(t, v, i >= v.leased), ErrRate)
		h.requireUnharmed(t)
	}, WithRecordRate(rate), atOnce)
}

// A record that a server ignores does not make it wait any longer. The time in which a consumer
// waits for an offer does not count.
func TestServerWaitsNoLongerForWhatItIgnores(t *testing.T) {
	dev, ctx := leavesNothing(t)
	buf := newBuffer(t, ctx, 1)
	sideBySide(t, map[string]func(*testing.T) (*sock.Conn, func() error){
		"the wish": func(t *testing.T) (*sock.Conn, func() error) {
			srv := listen(t, WithTimeout(brief))
			s := put(t, srv, buf)
			return dialed(t, srv), func() error { return s.await(t, PeerRefused, 1).Err }
		},
		"the mapping": func(t *testing.T) (*sock.Conn, func() error) {
			srv := listen(t)
			s := put(t, srv, buf, timeoutFrom(Connected, 1, brief), goodbyeIn(1, brief))
			return asked(t, srv, wants(dev)), func() error { return s.await(t, Ended, 1).Err }
		},
		"the mapping, after it has waited": func(t *testing.T) (*sock.Conn, func() error) {
			srv := listen(t, WithTimeout(brief))
			conn := asked(t, srv, wants(dev)) // which is there when the server begins to wait for it
			srv.Expect("data")
			awaitWaiting(t, srv, 1)
			longer, cancel := context.WithTimeout(soon(t), brief+brief/5)
			defer cancel()
			require.False(t, insist(longer, conn))
			require.Len(t, waiting(srv), 1)
			s := put(t, srv, buf)
			return conn, func() error { return s.await(t, Ended, 1).Err }
		},
		"the verdict": func(t *testing.T) (*sock.Conn, func() error) {
			srv := listen(t)
			s := put(t, srv, buf, WithVerdict(), timeoutFrom(Mapped, 1, brief), goodbyeIn(1, brief))
			conn := asked(t, srv, wants(dev))
			require.NoError(t, conn.Send(soon(t), wire.Encode(isMapped(buf))))
			return conn, func() error { return s.await(t, Ended, 1).Err }
		},
	}, func(t *testing.T, _ string, begin func(*testing.T) (*sock.Conn, func() error)) {
		conn, ended := begin(t)
		require.True(t, insist(soon(t), conn), "before it was let alone")
		require.ErrorIs(t, ended(), ErrTimeout)
	})
}
