package check

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Commands of a channel's containers, but for their flags. The socket lies beside the keeper's, in the
// directory that this has made.
const (
	channelSocket = volume + "/keeper/cam.sock"
	frameSize     = 64
)

// A writing is a container that publishes frames, and what it was fed.
type writing struct {
	*container
	input *os.File
	fed   string
}

// writer is one that waits for readers before its first frame.
func (p *pod) writer(readers int) *writing {
	p.t.Helper()
	theirs, mine, err := os.Pipe()
	require.NoError(p.t, err)
	args := []string{"/gpufd", "channel", "write", "cam", "--socket", channelSocket, "--slots", "4",
		"--slot-size", fmt.Sprint(frameSize), "--readers", fmt.Sprint(readers), "--timeout", "1m"}
	mounts := append(p.gpu(), bind(p.volume, volume))
	w := &writing{container: p.begin("writer", p.specOf(p.user, mounts, args), theirs), input: mine}
	require.NoError(p.t, theirs.Close())
	p.t.Cleanup(func() { _ = mine.Close() }) // it may have been closed
	return w
}

// feed has it publish one more frame, which is unlike all others.
func (w *writing) feed() {
	w.m.t.Helper()
	text := fmt.Sprintf("frame %d ", len(w.fed)/frameSize+1)
	frame := strings.Repeat(text, frameSize)[:frameSize]
	_, err := w.input.WriteString(frame)
	require.NoError(w.m.t, err, w.said())
	w.fed += frame
}

// frames is a reader of the channel. It prints the frames.
func (p *pod) frames() *container {
	p.t.Helper()
	return p.start("frames", p.gpu(), "/gpufd", "channel", "read", "cam", "--socket", channelSocket, "--timeout", "1m")
}

// has waits until a reader has printed exactly this.
func (c *container) has(frames string) {
	c.m.t.Helper()
	c.m.until(c.said, func() (bool, error) { return c.out.String() == frames, nil })
}

// TestChannel passes frames between containers that share a volume alone: a reader is killed, and
// the writer, and those that are started in their place go on.
func TestChannel(t *testing.T) {
	p := newMachine(t).newPod(ordinary)
	p.store()
	p.keeper()
	first, second := p.frames(), p.frames()
	w := p.writer(2)
	w.feed()
	first.has(w.fed)
	second.has(w.fed)
	requireConfined(t, w.container, first, second)

	t.Log("a reader is killed: the other has every frame, also more than there are slots")
	first.kill()
	for range 8 {
		w.feed()
	}
	second.has(w.fed)
	third := p.frames()
	third.m.until(third.said, func() (bool, error) {
		w.feed()
		return third.out.String() != "", nil
	})
	second.has(w.fed)

	t.Log("the writer is killed: readers have what was whole, and say that it is lost")
	p.until(third.said, func() (bool, error) {
		return strings.HasSuffix(w.fed, third.out.String()) && lastFrame(third) == lastFrame(second), nil
	})
	w.kill()
	for _, r := range []*container{second, third} {
		require.Equal(t, 4, r.wait(), r.said())
	}
	require.Equal(t, w.fed, second.out.String())

	t.Log("another writer and another reader take their place, at the same path")
	w, last := p.writer(1), p.frames()
	for range 8 {
		w.feed()
	}
	require.NoError(t, w.input.Close())
	require.Zero(t, w.wait(), w.said())
	require.Zero(t, last.wait(), last.said())
	require.Equal(t, w.fed, last.out.String())
}

// lastFrame is the one that a reader printed last.
func lastFrame(c *container) string {
	out := c.out.String()
	return out[max(0, len(out)-frameSize):]
}
