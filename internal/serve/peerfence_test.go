package serve

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/stretchr/testify/require"
)

// A lease ends, and its peer has released the memory, while somebody begins to wait for that: what is
// not known of the peer's process does not matter.
func TestReleasedWhileItIsAsked(t *testing.T) {
	wrong := 0
	for range 20000 {
		over := make(chan struct{})
		f := &PeerFence{unknown: errors.New("an older peer"), over: over}
		go func() {
			f.Released = true
			close(over)
		}()
		if f.await(t.Context(), fence.Released) != nil {
			wrong++
		}
	}
	require.Zero(t, wrong)
}

// The oldest go when there is no room.
func TestNoticesInTheirOrder(t *testing.T) {
	tr := &Transport{Notices: make(chan []byte, maxNotices)}
	for i := range 2*maxNotices + 1 {
		tr.NoteNotice(fmt.Append(nil, i))
	}
	require.Len(t, tr.Notices, maxNotices)
	require.Equal(t, fmt.Sprint(maxNotices+1), string(<-tr.Notices))
	require.Equal(t, wire.MaxNotice, MaxNotice)
}
