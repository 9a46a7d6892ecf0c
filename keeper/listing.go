package keeper

import (
	"context"
	"encoding/json"
	"time"
)

// The answer to a list is made and sent piece by piece: it may be long, and its client slow. So
// a name that is changed meanwhile is as it was or as it is; each by itself is whole.

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
		if err := w.send(maxPiece); err != nil {
			return err
		}
		after = name
	}
}

// pieces are the text of an answer that has not been sent. It counts as memory of the client's user.
type pieces struct {
	session *session
	text    []byte
	counted int
}

// answerPause is how long an answer waits for others before it looks again.
const answerPause = 5 * time.Millisecond

// next returns the first name behind another one, and what is said of it. It waits while the user
// has as much memory for answers as it may have.
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
	s.texts.Lock()
	defer s.texts.Unlock()
	s.mu.Lock()
	info, ok := s.state.ListAfter(after, w.session.who)
	s.mu.Unlock()
	if !ok {
		return "", nil, nil
	}
	if text, err = json.Marshal(info); err != nil {
		return "", nil, err
	}
	if err := s.answers.take(w.session.who.UID, len(text)); err != nil {
		return "", nil, err
	}
	w.counted += len(text)
	return info.Name, text, nil
}

// send sends whole records until no more than left bytes are left, the last of the answer if that
// is 0.
func (w *pieces) send(left int) error {
	for len(w.text) > left {
		n := min(maxPiece, len(w.text))
		last := n == len(w.text) && left == 0
		piece := append([]byte{pieceMore}, w.text[:n]...)
		if last {
			piece[0] = pieceLast
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
	w.session.server.answers.leave(w.session.who.UID, n)
	w.counted -= n
}

// send sends one record in the time of a step.
func (c *session) send(record []byte) error {
	ctx, cancel := c.server.step()
	defer cancel()
	return c.conn.Send(ctx, record)
}

// answer sends a reply. One about names, which may be long, counts as memory of the client's user; where that has no more, it
// hears that instead.
func (c *session) answer(ctx context.Context, r reply) error {
	if len(r.Names) == 0 {
		return send(ctx, c.conn, r)
	}
	s := c.server
	s.texts.Lock()
	text, err := json.Marshal(r)
	if err == nil {
		err = s.answers.take(c.who.UID, len(text))
	}
	s.texts.Unlock()
	if err == nil {
		defer s.answers.leave(c.who.UID, len(text))
	} else {
		s.metrics.refused(atControl, err)
		return send(ctx, c.conn, reply{Error: asError(err)})
	}
	return sendText(ctx, c.conn, text)
}
