package ring

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/sock"
)

// Every wrong byte is counted, and the first is named, whichever piece it is in.
func TestMismatch(t *testing.T) {
	good := bytes.Repeat([]byte{7}, 100)
	for i := range good {
		for _, offset := range []uint64{0, 5 << 30} {
			b := bytes.Clone(good)
			b[i] = 8
			m := &mismatch{Want: 7}
			m.look(good, 0)
			require.Zero(t, m.Bytes)
			m.look(b, offset)
			m.look(b, offset+100)
			require.Equal(t, mismatch{Offset: offset + uint64(i), Want: 7, Got: 8, Bytes: 2}, *m)
		}
	}
	require.EqualError(t, &mismatch{1 << 32, 0xa, 0, 3}, "its chunk is wrong: at offset 4294967296, want 0x0a, got 0x00; 3 bytes are wrong")
	require.EqualError(t, &mismatch{0, 1, 2, 1}, "its chunk is wrong: at offset 0, want 0x01, got 0x02; no other is wrong")
}

// The members' results decide the exit code: wrong data over everything else.
func TestExitCodes(t *testing.T) {
	done := &member{id: 0, last: &end{}}
	wrong := &member{id: 1, last: &end{Code: cli.ExitFailed, Error: "wrong"}}
	cannot := &member{id: 2, last: &end{Code: cli.ExitMachine, Error: "cannot"}}
	verdict := func(m ...*member) error { return (&parent{members: m}).verdict() }
	require.NoError(t, verdict(done, done))
	require.EqualError(t, verdict(done, wrong), "process 1: wrong")
	require.EqualError(t, verdict(cannot, done, wrong), "2 processes failed, among them process 1: wrong")
	require.Equal(t, cli.ExitFailed, cli.ExitCode(verdict(cannot, wrong)))
	require.Equal(t, cli.ExitMachine, cli.ExitCode(verdict(cannot, done)))

	err := error(&failure{id: 3, err: peerLost(3)})
	require.Equal(t, cli.ExitPeer, cli.ExitCode(err))
	require.True(t, errors.Is(err, sock.ErrPeerLost))
	require.EqualError(t, err, "peer 3 lost")
}
