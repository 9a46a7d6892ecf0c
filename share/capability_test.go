package share

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/sock"
)

// A consumer that has not said that it takes legacy memory is told so by code, and is sent no
// handle, whenever it comes; whatever else it says that it takes.
func TestLegacyHandleIsForWhoTakesIt(t *testing.T) {
	dev, ctx := leavesNothing(t)
	m := newLegacy(t, ctx, 1)
	bits := func(c wire.Capabilities) []byte {
		want := wants(dev)
		want.Capabilities = c
		return wire.Encode(want)
	}
	longer := field{1, string(binary.LittleEndian.AppendUint64(nil, 1)) + "and 64 more"}
	for name, c := range map[string]struct {
		ask   []byte
		takes bool
	}{
		"says nothing":          {bits(0), false},
		"takes all but that":    {bits(^wire.TakesLegacy), false},
		"takes that":            {bits(wire.TakesLegacy), true},
		"takes all":             {bits(^wire.Capabilities(0)), true},
		"has more than 64 bits": {later(bits(0), 0, longer), true},
	} {
		for when, offer := range legacyOffers(m) {
			t.Run(name+", "+when, func(t *testing.T) {
				srv := listen(t, goodbyes(brief))
				conn := dialed(t, srv)
				s := offer(t, srv, func() { require.NoError(t, conn.Send(soon(t), c.ask)) })
				rec := ok(conn.Receive(soon(t)))(t)
				handle := m.handle.Handle
				require.Equal(t, c.takes, bytes.Contains(rec.Data, handle[:]))
				if !c.takes {
					requireNamed(t, rec.Data, "legacy handle")
					require.ErrorContains(t, s.await(t, PeerRefused, 1).Err, "legacy handle")
					require.ErrorIs(t, errOf(conn.Receive(soon(t))), sock.ErrPeerLost, "nothing else comes")
				}
				require.NoError(t, conn.Close())
			})
		}
	}
}

// legacyOffers are the ways to offer m to a consumer that asks for it.
func legacyOffers(m *Legacy) map[string]func(t *testing.T, srv *Server, ask func()) *served {
	prepare := func(t *testing.T, srv *Server) *served {
		s := newServed(srv)
		p := ok(srv.PrepareLegacy("data", m, OnEvent(s.see)))(t)
		t.Cleanup(func() { _ = p.Close() })
		return s
	}
	return map[string]func(t *testing.T, srv *Server, ask func()) *served{
		"offered": func(t *testing.T, srv *Server, ask func()) *served {
			defer ask()
			return serveLegacy(t, srv, m)
		},
		"prepared": func(t *testing.T, srv *Server, ask func()) *served {
			defer ask()
			return prepare(t, srv)
		},
		"expected, and offered": func(t *testing.T, srv *Server, ask func()) *served {
			srv.Expect("data")
			ask()
			awaitWaiting(t, srv, 1)
			return serveLegacy(t, srv, m)
		},
		"expected, and prepared": func(t *testing.T, srv *Server, ask func()) *served {
			srv.Expect("data")
			ask()
			awaitWaiting(t, srv, 1)
			return prepare(t, srv)
		},
	}
}

// requireNamed checks that the record refuses what it names.
func requireNamed(t *testing.T, record []byte, name string) {
	t.Helper()
	m := ok(wire.Decode(record))(t)
	no := m.(wire.Refuse)
	require.Equal(t, RefusedUnsupported, no.Code)
	require.Contains(t, no.Text, name)
}
