package server

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv/leak"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/sock"
)

func TestPlaces(t *testing.T) {
	p := newPlaces("cups", 10, 6, 3, 1)
	refused := func(words string, uid uint32, n int) {
		t.Helper()
		no := requireCode(t, codeBusy, p.take(uid, n))
		require.Contains(t, no.Message, words)
	}
	require.NoError(t, p.take(2, 6))
	refused("6 cups of uid 2, and takes 6", 2, 1)
	require.NoError(t, p.take(3, 1))
	refused("7 cups, and takes 7", 3, 1) // what is left is the owner's
	require.NoError(t, p.take(1, 3))
	refused("10 cups, and takes 10", 1, 1)
	p.leave(2, 6)
	require.NoError(t, p.take(1, 3))
	refused("6 cups of uid 1", 1, 1)
	p.leave(1, 6)
	p.leave(3, 1)
	require.Empty(t, p.of)
	require.Zero(t, p.taken)
}

// limitedTo opens a keeper that takes so many connections and descriptors.
func limitedTo(t *testing.T, clients, files int) (*Server, *client) {
	t.Helper()
	s := opened(t, options(newSocket(t)))
	s.clients.mu.Lock()
	s.clients.each = clients
	s.clients.mu.Unlock()
	s.received.mu.Lock()
	s.received.each = files
	s.received.mu.Unlock()
	return s, dialled(t, s.opts.Socket)
}

// TestFault92_CrowdAtTheControlSocket: a user with as many connections as the keeper takes of
// one user is told so, at once, with or without a request; the others are served, and a
// connection that ends makes room.
func TestFault92_CrowdAtTheControlSocket(t *testing.T) {
	s, c := limitedTo(t, 3, 100)
	require.NoError(t, errOf(c.Status(soon(t))))
	crowd := []*client{dialled(t, s.opts.Socket), dialled(t, s.opts.Socket)}
	for _, one := range crowd {
		require.NoError(t, errOf(one.Status(soon(t))))
	}
	for range 20 {
		late := dialled(t, s.opts.Socket)
		_, err := late.Status(soon(t))
		no := requireCode(t, codeBusy, err)
		require.Contains(t, no.Message, "3 connections of uid")
	}
	require.NoError(t, errOf(c.Status(soon(t))), "who is in is served")
	require.Equal(t, "20", scraped(s)[`gpufd_keeper_refusals_total{socket="control",reason="busy"}`])
	require.NoError(t, crowd[0].Close())
	require.Eventually(t, func() bool {
		late := dialled(t, s.opts.Socket)
		_, err := late.Status(soon(t))
		return errors.Join(err, late.Close()) == nil
	}, waitLong, waitStep)
}

// Descriptors that nobody delivers are bounded, and given back with their connection. None
// are taken from a client without a ticket.
func TestFault92_DescriptorsThatAreNotDelivered(t *testing.T) {
	s, c := limitedTo(t, 10, 3)
	dev := cutest.Device(t)
	_, files := exported(t, dev)
	for _, dialled := range []error{errOf(c.Status(soon(t))), errOf(c.conn().Query(soon(t), protocol.Request{Op: protocol.OpStatus}))} {
		require.NoError(t, dialled)
	}
	kinds := func() string {
		all := leak.OpenFDs().Kinds()
		delete(all, "anon_inode:[pidfd]") // those of processes that are watched
		return fmt.Sprint(all)
	}
	before := kinds()
	hoarder := ok(dial(soon(t), s.opts.Socket))(t)
	b := bookingOf(t, hoarder, dev, small)
	send := func(c *client) error {
		_, err := c.conn().Ask(soon(t), protocol.Request{Op: protocol.OpFiles, Ticket: b.Ticket}, files[0])
		return err
	}
	for range 3 {
		require.NoError(t, send(hoarder))
	}
	no := requireCode(t, codeBusy, send(hoarder))
	require.Contains(t, no.Message, "3 descriptors of parts that were not delivered")
	require.NoError(t, errOf(c.conn().Ask(soon(t), protocol.Request{Op: protocol.OpRenew, Ticket: b.Ticket})))
	requireCode(t, codeBusy, send(c)) // all connections of the user together
	require.NoError(t, errOf(hoarder.conn().Ask(soon(t), protocol.Request{Op: protocol.OpRenew, Ticket: b.Ticket})), "all comes again")
	require.NoError(t, send(hoarder))
	require.NoError(t, hoarder.Close())
	require.Eventually(t, func() bool {
		s.received.mu.Lock()
		defer s.received.mu.Unlock()
		return s.received.taken == 0
	}, waitLong, waitStep)
	require.NoError(t, send(c))
	require.NoError(t, errOf(c.conn().Ask(soon(t), protocol.Request{Op: protocol.OpCancel, Ticket: b.Ticket})))
	require.Eventually(t, func() bool { return before == kinds() }, waitLong, waitStep, "%s", lazily(func() string { return before + kinds() }))
}

// A client without a ticket sends no descriptors, and one with a ticket sends them in one record.
//
//fault:rows 92
func TestDescriptorsWithoutATicket(t *testing.T) {
	s, c, dev := kept(t)
	for what, records := range map[string][]byte{
		"no ticket":     record(protocol.PieceLast, `{"op":"list"}`),
		"more to come":  record(protocol.PieceMore, `{`),
		"before a book": record(protocol.PieceLast, `{"op":"files","ticket":"t1"}`),
	} {
		t.Run(what, func(t *testing.T) {
			conn := ok(sock.Dial(soon(t), s.opts.Socket+protocol.ControlSuffix))(t)
			require.NoError(t, conn.Send(soon(t), record(protocol.PieceLast, `{"op":"status"}`)))
			_, err := conn.Receive(soon(t)) // it is served
			require.NoError(t, err)
			if err = conn.Send(soon(t), records, os.Stdin); err == nil { // an older kernel
				require.ErrorIs(t, errOf(conn.Receive(soon(t))), sock.ErrPeerLost)
			} else {
				require.ErrorIs(t, err, unix.EPERM)
			}
			require.NoError(t, conn.Close())
		})
	}
	conn := ok(sock.Dial(soon(t), c.socket+protocol.ControlSuffix))(t)
	defer conn.Close()
	var booked protocol.Reply
	require.NoError(t, protocol.Send(soon(t), conn, protocol.Request{
		Op: protocol.OpBook, Name: "halved", Parts: 1, Device: dev.UUID().String(), Kind: dev.Driver().Kind().String(), Bytes: small,
	}))
	require.NoError(t, errOf(protocol.Receive(soon(t), conn, protocol.MaxReply, &booked)))
	require.NotEmpty(t, booked.Ticket)
	require.NoError(t, conn.Send(soon(t), record(protocol.PieceMore, `{"op":"files","ticket":"`+booked.Ticket), os.Stdin))
	require.ErrorIs(t, errOf(conn.Receive(soon(t))), sock.ErrPeerLost)
}

// A client that begins a message and does not go on is disconnected.
//
//fault:rows 92
func TestMessageThatDoesNotEnd(t *testing.T) {
	opts := options(newSocket(t))
	opts.Timeout = 200 * time.Millisecond
	s := opened(t, opts)
	conn := ok(sock.Dial(soon(t), s.opts.Socket+protocol.ControlSuffix))(t)
	require.NoError(t, conn.Send(soon(t), record(protocol.PieceMore, `{`)))
	require.ErrorIs(t, errOf(conn.Receive(soon(t))), sock.ErrPeerLost)
	require.NoError(t, conn.Close())
	idle := ok(sock.Dial(soon(t), s.opts.Socket+protocol.ControlSuffix))(t)
	defer idle.Close()
	for range 2 {
		require.NoError(t, idle.Send(soon(t), record(protocol.PieceLast, `{"op":"status"}`)), "between messages it may wait")
		require.NoError(t, errOf(idle.Receive(soon(t))))
		time.Sleep(2 * opts.Timeout)
	}
}
