package share

import (
	"fmt"
	"io"
	"os"
	"testing"

	"github.com/gpufd/gpufd/internal/wire"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

const (
	reserves = "cuMemAddressReserve"
	frees    = "cuMemAddressFree"
)

// Room that was reserved while the offer was waited for is used if it is enough;
// if not, the memory gets a reservation as without.
func TestRoomIsReservedBeforehand(t *testing.T) {
	spy, dev, ctx := spied(t)
	g := granularity(t, dev)
	srv := listen(t)
	put(t, srv, newBuffer(t, ctx, 3*g-1, vmm.WithChunkSize(g)))
	for _, c := range []struct {
		room          uint64
		before, after int // reservations when the offer is here, and at the end
	}{
		{0, 0, 1}, {3*g - 1, 1, 1}, {3 * g, 1, 1}, {5 * g, 1, 1}, {2 * g, 1, 2}, {1, 1, 2},
	} {
		t.Run(fmt.Sprint(c.room/g), func(t *testing.T) {
			first, owed, received := spy.count(reserves), spy.count(frees), -1
			att := ok(Attach(soon(t), srv.Path(), "", dev, WithRoom(c.room),
				OnReceived(func(Offer, []*os.File) { received = spy.count(reserves) - first })))(t)
			require.Equal(t, c.before, received)
			require.Equal(t, c.after, spy.count(reserves)-first)
			require.Equal(t, c.after-1, spy.count(frees)-owed, "what did not do is given back")
			requireNoise(t, ctx, att.Buffer(), 1)
			require.NoError(t, att.Close())
			require.Equal(t, c.after, spy.count(frees)-owed)
		})
	}
}

// The device is another one, and the room is good for it.
func TestRoomOnAnotherDevice(t *testing.T) {
	spy, dev, ctx := spied(t)
	_, other := cutest.TwoDevices(t, dev.Driver())
	srv := listen(t)
	put(t, srv, newBuffer(t, ctx, 1))
	first := spy.count(reserves)
	att := attached(t, srv, "", other, WithAnyDevice(), WithRoom(1))
	require.Same(t, dev, att.Buffer().Device())
	require.Equal(t, 1, spy.count(reserves)-first)
}

// Where there is no room, attaching fails, and the producer is told why.
func TestRoomThatCannotBeReserved(t *testing.T) {
	spy, dev, ctx := spied(t)
	srv := listen(t)
	s := put(t, srv, newBuffer(t, ctx, 1))
	for i, c := range []struct {
		room uint64
		fail string
		want error
	}{
		{1, reserves, cu.ErrOutOfMemory}, {^uint64(0), "", vmm.ErrSize},
	} {
		require.ErrorIs(t, spy.during(c.fail, func() error {
			_, err := Attach(soon(t), srv.Path(), "", dev, WithRoom(c.room))
			return err
		}), c.want)
		told := s.await(t, Ended, i+1).Err
		require.ErrorIs(t, told, ErrVerdict)
		require.ErrorContains(t, told, "attaching failed: ")
	}
	requireServed(t, srv, ctx)

	srv.Expect("later") // of what is not there yet it has no lease
	full := spy.Fail(reserves, cu.ErrOutOfMemory)
	require.ErrorIs(t, errOf(Attach(soon(t), srv.Path(), "later", dev, WithRoom(1))), cu.ErrOutOfMemory)
	full.Stop()
	told := s.await(t, PeerRefused, 1).Err
	require.ErrorIs(t, told, ErrVerdict)
	require.ErrorContains(t, told, "attaching failed: ")
	require.Empty(t, waiting(srv))
	conn := early(t, srv, wire.Attach{Driver: dev.Driver().Kind(), Access: ReadOnly, Name: "later"})
	require.NoError(t, conn.Send(soon(t), wire.Encode(wire.Verdict{OK: false, Text: "no room"})))
	require.ErrorIs(t, errOf(conn.Receive(soon(t))), io.EOF, "nothing is to be said to that")
	require.ErrorContains(t, s.await(t, PeerRefused, 2).Err, "no room")
}

// Invariant 4: whatever keeps the memory from being mapped, the room is given
// back.
func TestRoomIsGivenBack(t *testing.T) {
	spy, dev, ctx := spied(t)
	tr := truthOf(t, ctx)
	other := tr.Memory.Device
	other[3] ^= 1
	for name, c := range map[string]struct {
		lies []lie
		opts []AttachOption
		fail string
		want error
	}{
		"refused":         {[]lie{{wire.Encode(wire.Refuse{Code: RefusedName, Text: "x"}), nil}}, nil, "", ErrRefused},
		"revoked":         {[]lie{{wire.Encode(wire.Revoke{Text: "x"}), nil}}, nil, "", ErrRevoked},
		"lost":            {nil, nil, "", sock.ErrPeerLost},
		"random bytes":    {[]lie{{noise(500, 3), tr.files}}, nil, "", ErrWire},
		"another offer":   {[]lie{tr.say(func(o *wire.Offer) { o.Name = "other" }, tr.files...)}, nil, "", ErrProtocol},
		"too much access": {[]lie{tr.say(nil, tr.files...)}, []AttachOption{WithAccess(ReadWrite)}, "", ErrProtocol},
		"another device":  {[]lie{tr.say(func(o *wire.Offer) { o.Memory.Device = other }, tr.files...)}, nil, "", vmm.ErrDevice},
		"no such device":  {[]lie{tr.say(func(o *wire.Offer) { o.Memory.Device = other }, tr.files...)}, []AttachOption{WithAnyDevice()}, "", nil},
		"overflow":        {[]lie{tr.say(func(o *wire.Offer) { o.Memory.ChunkSize = 1 << 63 }, tr.files...)}, nil, "", vmm.ErrDescriptor},
		"size 0":          {[]lie{tr.say(func(o *wire.Offer) { o.Memory.ChunkSize = 0 }, tr.files...)}, nil, "", vmm.ErrDescriptor},
		"not mapped":      {[]lie{tr.say(nil, tr.files...)}, nil, "cuMemMap", cu.ErrOutOfMemory},
		"not imported":    {[]lie{tr.say(nil, tr.files...)}, nil, "cuMemImportFromShareableHandle", cu.ErrOutOfMemory},
	} {
		t.Run(name, func(t *testing.T) {
			leavesNothingOn(t, dev)
			reserved, freed := spy.count(reserves), spy.count(frees)
			path := impostor(t, func(conn *sock.Conn) {
				if len(c.lies) > 0 {
					tell(t, c.lies...)(conn)
				}
			})
			err := spy.during(c.fail, func() error {
				_, err := Attach(soon(t), path, "data", dev, append(c.opts, WithRoom(3*tr.Memory.ChunkSize))...)
				return err
			})
			require.Error(t, err)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
			require.Equal(t, reserved+1, spy.count(reserves))
			require.Equal(t, freed+1, spy.count(frees))
		})
	}
}
