package server

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
)

// A reader learns nothing of names for which it has no rule: whether there are such names or not, it is
// refused in the same way, at once, also while the version of one is about to be replaced.
func TestRefusedReadersDoNotLearnNames(t *testing.T) {
	s, _, dev := kept(t)
	self := uint32(os.Geteuid())
	c := limited(t, s,
		state.Rule{UID: &self, Prefix: "mine", Allow: []state.Right{state.Read, state.Write}},
		state.Rule{UID: &self, Allow: []state.Right{state.Write}})
	put(t, c, dev, "theirs", 1)
	attach := func(name string, access cu.Access) error {
		_, err := share.Attach(soon(t), s.opts.Socket, name, dev, &share.AttachOptions{Access: access, AnyDevice: true})
		return err
	}
	require.ErrorIs(t, attach("", 0), share.ErrNotFound, "there is one, which it may not know")
	for _, name := range []string{"theirs", "theirs/0", "none", "none/0", "min"} {
		require.ErrorIs(t, attach(name, 0), share.ErrDenied, name)
		require.EqualError(t, attach(name, 0), attach("theirs", 0).Error())
	}
	for _, name := range []string{"mine", "mine/3"} {
		require.ErrorIs(t, attach(name, 0), share.ErrNotFound, name)
		require.ErrorIs(t, attach(name, cu.ReadWrite), share.ErrNotFound, name)
	}
	s.mu.Lock() // as while a change waits for the store
	s.leaving, s.left = map[*offer]bool{s.offers["theirs"]: true}, make(chan struct{})
	s.mu.Unlock()
	start := time.Now()
	require.ErrorIs(t, attach("theirs", 0), share.ErrDenied)
	require.Less(t, time.Since(start), s.opts.Timeout/2)
	s.mu.Lock()
	s.stay()
	s.mu.Unlock()
}

func TestNameOf(t *testing.T) {
	for as, want := range map[string]string{"w": "w", "w/3": "w", "w/33": "w", "a/b": "a/b", "a/b/0": "a/b", "w/": "w/", "/3": "/3", "": "", "w/3x": "w/3x"} {
		require.Equal(t, want, protocol.NameOf(as), as)
	}
}
