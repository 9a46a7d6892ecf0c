package cu

// A Queue is where a copy or fill that waits does its work: a [*Stream], behind the work that it
// has, or a [*Context], which stands for its null stream. There are no others.
//
//	err = kernel.Launch(s, cfg, p)
//	err = cu.CopyToHost(s, results, p) // after the kernel
//
// With a context such a call waits for earlier work of the null stream and of blocking streams,
// but not for that of [Context.NewStream].
type Queue interface {
	queue(op string) (*Stream, error)
}

func (s *Stream) queue(op string) (*Stream, error) {
	if s == nil {
		return nil, unusable(op, "the stream", true)
	}
	return s, nil
}

func (c *Context) queue(op string) (*Stream, error) {
	if c == nil {
		return nil, unusable(op, "the context", true)
	}
	return c.null, nil
}

// waiting gives work to q's stream, and waits for that.
func waiting(q Queue, op string, work func(*Stream) error) error {
	if q == nil {
		return unusable(op, "the stream or context", true)
	}
	s, err := q.queue(op)
	if err != nil {
		return err
	}
	if err := s.run("cuStreamSynchronize", s.refuseCaptured); err != nil { // before any of it is captured
		return err
	}
	if err := work(s); err != nil {
		return err
	}
	return s.wait()
}
