package server

import (
	"encoding/json"
	"time"

	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
)

// The answer to a list is made and sent piece by piece: it may be long, and its client slow. So
// a name that changes meanwhile is shown as before or after the change, but always whole.

// list answers with all names that the client may see.
func (c *session) list() (err error) {
	w := pieces{session: c, text: []byte(`{"names":[`)}
	defer func() { w.sent(w.counted) }()
	for after, first := "", true; ; first = false {
		name, text, err := w.next(after)
		if err != nil {
			return err
		}
		if name == "" {
			w.text = append(w.text, `]}`...)
			return w.send(0)
		}
		if !first {
			w.text = append(w.text, ',')
		}
		w.text = append(w.text, text...)
		if err := w.send(protocol.MaxPiece); err != nil {
			return err
		}
		after = name
	}
}

// pieces hold the text of an answer that has not been sent, charged to the client's user.
type pieces struct {
	session *session
	text    []byte
	counted int
}

// answerPause is how long an answer waits for others before it looks again.
const answerPause = 5 * time.Millisecond

// next returns the first name after another one, and its text. It waits while the user has as
// much memory for answers as it may have.
func (w *pieces) next(after string) (name string, text []byte, err error) {
	s := w.session.server
	ctx, cancel := s.step()
	defer cancel()
	for {
		if name, text, err = w.make(after); err == nil || ctx.Err() != nil {
			return name, text, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(answerPause):
		}
	}
}

func (w *pieces) make(after string) (name string, text []byte, err error) {
	s := w.session.server
	s.mu.Lock()
	name, size := s.state.After(after, w.session.who)
	n := answerOf(size)
	if name != "" {
		err = s.answers.Take(w.session.who.UID, n)
	}
	var info state.Info
	if name != "" && err == nil {
		w.counted += n
		info, err = s.state.Stat(name, w.session.who)
	}
	s.mu.Unlock()
	if name == "" || err != nil {
		return "", nil, err
	}
	text, err = json.Marshal(info)
	w.sent(max(0, n-len(text)))
	return name, text, err
}

// answerOf returns about how long the text of a name is at most, if its record has that size.
func answerOf(size int) int { return 2*size + 512 }

// send sends whole records until no more than left bytes are left, the last of the answer if that
// is 0.
func (w *pieces) send(left int) error {
	for len(w.text) > left {
		n := min(protocol.MaxPiece, len(w.text))
		last := n == len(w.text) && left == 0
		piece := append([]byte{protocol.PieceMore}, w.text[:n]...)
		if last {
			piece[0] = protocol.PieceLast
		}
		if err := w.session.send(piece); err != nil {
			return err
		}
		w.text = w.text[n:]
		w.sent(min(n, w.counted))
	}
	w.text = append([]byte(nil), w.text...)
	return nil
}

func (w *pieces) sent(n int) {
	w.session.server.answers.Leave(w.session.who.UID, n)
	w.counted -= n
}

// send sends one record in the time of a step.
func (c *session) send(record []byte) error {
	ctx, cancel := c.server.step()
	defer cancel()
	return c.conn.Send(ctx, record)
}

// stat answers with one name. Until the answer is sent it counts as memory of the client's user.
func (c *session) stat(name string) (protocol.Reply, error) {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	info, err := s.state.Stat(name, c.who)
	if err != nil {
		return protocol.Reply{}, err
	}
	n := answerOf(s.state.Size(name))
	if err := s.answers.Take(c.who.UID, n); err != nil {
		return protocol.Reply{}, err
	}
	c.answering = n
	return protocol.Reply{Names: []state.Info{info}}, nil
}

// answered gives back what stat has taken.
func (c *session) answered() {
	c.server.answers.Leave(c.who.UID, c.answering)
	c.answering = 0
}
