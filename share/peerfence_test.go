package share

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gpufd/gpufd/internal/wire"
	"github.com/stretchr/testify/require"
)

// A lease ends, and its peer has released the memory, while somebody begins to wait for that: what is
// not known of the peer's process does not matter.
func TestReleasedWhileItIsAsked(t *testing.T) {
	wrong := 0
	for range 20000 {
		over := make(chan struct{})
		f := &fence{unknown: errors.New("an older peer"), over: over}
		go func() {
			f.released = true
			close(over)
		}()
		if f.await(t.Context(), Released) != nil {
			wrong++
		}
	}
	require.Zero(t, wrong)
}

// The oldest go when there is no room.
func TestNoticesInTheirOrder(t *testing.T) {
	tr := &transport{notices: make(chan []byte, maxNotices)}
	for i := range 2*maxNotices + 1 {
		tr.noteNotice(fmt.Append(nil, i))
	}
	require.Len(t, tr.notices, maxNotices)
	require.Equal(t, fmt.Sprint(maxNotices+1), string(<-tr.notices))
	require.Equal(t, wire.MaxNotice, MaxNotice)
}
