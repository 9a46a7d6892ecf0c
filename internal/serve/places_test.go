package serve

import (
	"testing"
	"time"

	"github.com/gpufd/gpufd/sock"
	"github.com/stretchr/testify/require"
)

// TestFault59_Places: places are counted in all and of each process, where those without a
// pid are one for each user.
func TestFault59_Places(t *testing.T) {
	p := newPlaces(5, 2)
	one, other, hidden := sock.Peer{UID: 1, PID: 7}, sock.Peer{UID: 1, PID: 8}, sock.Peer{UID: 1}
	take := func(who sock.Peer, why string) func() {
		t.Helper()
		leave, full := p.take(who)
		require.Equal(t, why == "", full == "", full)
		require.Contains(t, full, why)
		return leave
	}
	first := take(one, "")
	take(one, "")
	take(one, "2 connections of this process")
	otherUser := take(sock.Peer{UID: 2, PID: 7}, "")
	second := take(hidden, "")
	take(hidden, "")
	take(other, "5 connections, and takes no more")
	second()
	take(hidden, "")
	otherUser()
	take(hidden, "2 connections of a user's processes in other PID namespaces")
	first()
	take(one, "")
	take(other, "")
	take(sock.Peer{UID: 9}, "5 connections, and takes no more")
	require.Equal(t, 5, p.taken)
}

func TestPlacesAreForgotten(t *testing.T) {
	p := newPlaces(1, 1)
	for pid := range int32(100) {
		leave, full := p.take(sock.Peer{PID: pid})
		require.Empty(t, full, "there is always one")
		_, full = p.take(sock.Peer{PID: 1000})
		require.NotEmpty(t, full)
		leave()
	}
	require.Zero(t, p.taken)
	require.Empty(t, p.of)
}

// A second's worth may come at once, and more as time goes by.
func TestMeter(t *testing.T) {
	now := time.Now()
	require.Nil(t, newMeter(0))
	require.Nil(t, newMeter(-1))
	require.True(t, newMeter(0).allow(now))
	for _, rate := range []int{1, 3, 7, 1000, 1001} {
		m := newMeter(rate)
		burst := func(after time.Duration) (n int) {
			for now = now.Add(after); m.allow(now); n++ {
			}
			m.paid = m.paid.Add(-time.Second / time.Duration(rate)) // as if the last had not come
			return n
		}
		require.Equal(t, rate, burst(0), "at once")
		require.Zero(t, burst(time.Second/time.Duration(rate)/2))
		require.InDelta(t, rate, burst(time.Second), 1)
		require.Equal(t, rate, burst(time.Hour), "no more than a second's worth is saved up")
	}
}
