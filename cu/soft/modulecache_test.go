package soft

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// A text is parsed once, as often as it is loaded, until enough others were.
func TestModuleCache(t *testing.T) {
	var s moduleCache
	text := func(i int) string {
		return fmt.Sprintf(".version 7.4\n.target sm_75\n.address_size 64\n.visible .entry k%d() { ret; }\n", i)
	}
	first, err := s.parse(text(0), false)
	require.NoError(t, err)
	again, err := s.parse(text(0), false)
	require.NoError(t, err)
	require.Same(t, first, again)
	other, err := s.parse(text(0), true)
	require.NoError(t, err)
	require.NotSame(t, first, other, "it is read otherwise")
	for i := 1; i < cachedModules; i++ {
		_, err := s.parse(text(i), false)
		require.NoError(t, err)
		_, err = s.parse(text(0), false)
		require.NoError(t, err)
	}
	again, _ = s.parse(text(0), false)
	require.Same(t, first, again, "it was asked for meanwhile")
	again, _ = s.parse(text(0), true)
	require.NotSame(t, other, again, "it was not")
	require.Len(t, s.read, cachedModules)

	_, err = s.parse("nonsense", false)
	require.Error(t, err)
	long := text(1) + "//" + string(make([]byte, cachedText))
	_, _ = s.parse(long, false)
	require.Len(t, s.read, cachedModules)
	require.Nil(t, s.find(long, false))
}
