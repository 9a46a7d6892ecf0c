package fdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/sock"
)

// Status asks the store what it is and holds.
func (c *Client) Status(ctx context.Context) (s Status, err error) {
	err = c.do(ctx, "status", func() (err error) {
		s, err = c.status(ctx)
		return err
	})
	return s, err
}

func (c *Client) status(ctx context.Context) (Status, error) {
	r, err := c.request(ctx, header{op: opStatus}, nil)
	if err != nil {
		return Status{}, err
	}
	s, err := parseStatus(r.body)
	s.Identity = r.id
	return s, errors.Join(err, r.rec.Close())
}

// Hold makes the store hold 1 to MaxSet files under id. With an error it holds none. The
// caller keeps its files, and may close them once Hold has returned. ErrHeld: the id has a
// set already; ErrFull: the store cannot have so many open; ErrSize and os.ErrClosed are
// the caller's mistakes. If ctx ends it, the set may be held: List tells.
func (c *Client) Hold(ctx context.Context, id uint64, files []*os.File) error {
	return c.do(ctx, "hold", func() error {
		if len(files) == 0 || len(files) > MaxSet {
			return fmt.Errorf("%w, not %d", ErrSize, len(files))
		}
		for from := 0; from < len(files); from += sock.MaxFDs {
			part := files[from:min(len(files), from+sock.MaxFDs)]
			h := header{op: opHold, id: id, count: uint32(len(files)), from: uint32(from)}
			if err := c.requestNothing(ctx, h, nil, part...); err != nil {
				c.abandon()
				return fmt.Errorf("set %d: %w", id, err)
			}
		}
		return nil
	})
}

// abandon makes the store discard a set that may have been sent in part, as every request
// does that is not the next part. Nobody waits for the answer. If it cannot be sent, the
// next request or the end of the connection does the same.
func (c *Client) abandon() {
	_, forget := c.await()
	defer forget()
	_ = c.conn.TrySend(header{op: opStatus, seq: c.seq}.append(nil))
}

// requestNothing is request for an answer that brings nothing.
func (c *Client) requestNothing(ctx context.Context, h header, body []byte, files ...*os.File) error {
	r, err := c.request(ctx, h, body, files...)
	if err != nil {
		return err
	}
	return r.rec.Close()
}

// Swap makes a memfd of manifest, seals it and makes the store hold it in place of the last
// one: a later keeper finds one or the other. A manifest may be empty.
// ErrManifest: it is longer than MaxManifest. If ctx ends it, the store may have either:
// Manifest tells.
func (c *Client) Swap(ctx context.Context, manifest []byte) error {
	return c.do(ctx, "swap", func() error {
		f, err := descriptor.Sealed("gpufd-manifest", manifest)
		if err != nil {
			return err
		}
		err = c.requestNothing(ctx, header{op: opSwap}, nil, f)
		return errors.Join(err, f.Close())
	})
}

// Manifest returns the manifest, and nil if there is none. An empty one is not nil.
func (c *Client) Manifest(ctx context.Context) (manifest []byte, err error) {
	err = c.do(ctx, "manifest", func() error {
		r, err := c.request(ctx, header{op: opManifest}, nil)
		if err != nil {
			return err
		}
		defer r.rec.Close()
		if len(r.rec.Files) != int(r.count) || r.count > 1 {
			return fmt.Errorf("%w: %d descriptors for %d manifests", ErrMalformed, len(r.rec.Files), r.count)
		}
		if r.count == 1 {
			manifest, err = readManifest(r.rec.Files[0])
		}
		return err
	})
	return manifest, err
}

func readManifest(f *os.File) ([]byte, error) {
	size, err := checkManifest(int(f.Fd()))
	if err != nil {
		return nil, err
	}
	content := make([]byte, size)
	if _, err := f.ReadAt(content, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return content, nil
}

// Fetch returns descriptors of set id, in the order in which they were held. The caller
// owns them; the store keeps its own. ErrUnknown: there is no such set. A process that
// runs out of descriptors in it loses the connection (sock.ErrStuck).
func (c *Client) Fetch(ctx context.Context, id uint64) (files []*os.File, err error) {
	err = c.do(ctx, "fetch", func() (err error) {
		for total := 1; len(files) < total && err == nil; {
			var more []*os.File
			more, total, err = c.fetchPart(ctx, id, len(files))
			files = append(files, more...)
		}
		return err
	})
	if err != nil {
		sock.DropFiles(files)
		return nil, err
	}
	return files, nil
}

// fetchPart returns some descriptors from an index on, and how many the set has.
func (c *Client) fetchPart(ctx context.Context, id uint64, from int) (files []*os.File, total int, err error) {
	r, err := c.request(ctx, header{op: opFetch, id: id, from: uint32(from)}, nil)
	if err != nil {
		return nil, 0, fmt.Errorf("set %d: %w", id, err)
	}
	n := len(r.rec.Files)
	if n == 0 || r.count > MaxSet || from+n > int(r.count) {
		sock.DropFiles(r.rec.Files)
		return nil, 0, fmt.Errorf("set %d: %w: %d descriptors from index %d of %d", id, ErrMalformed, n, from, r.count)
	}
	return r.rec.Files, int(r.count), nil
}

// Drop makes the store close the sets with these ids, and does not wait until they are
// closed, which may take long. ErrUnknown: one of them is no set, and none is closed; of
// more than 4,096 ids that is true of each 4,096.
func (c *Client) Drop(ctx context.Context, ids ...uint64) error {
	return c.do(ctx, "drop", func() error {
		for len(ids) > 0 {
			some := ids[:min(len(ids), maxIDs)]
			if err := c.requestNothing(ctx, header{op: opDrop, count: uint32(len(some))}, appendIDs(nil, some)); err != nil {
				return err
			}
			ids = ids[len(some):]
		}
		return nil
	})
}

// List returns the ids of all sets, and how many descriptors each has.
func (c *Client) List(ctx context.Context) (map[uint64]int, error) {
	sets := map[uint64]int{}
	err := c.do(ctx, "list", func() error {
		for first, more := uint64(0), true; more; {
			r, err := c.request(ctx, header{op: opList, id: first}, nil)
			if err != nil {
				return err
			}
			last, err := parseEntries(sets, r.body)
			if err := errors.Join(err, r.rec.Close()); err != nil {
				return err
			}
			more = len(r.body) > 0 && int(r.count) > len(r.body)/entrySize && last < math.MaxUint64
			first = last + 1
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return sets, nil
}

// Exit makes the store close all that it holds, and end. Memory whose descriptors no
// other process has is gone. It returns when the connection has ended; then the path is
// free for another store. The Client remains to be closed.
func (c *Client) Exit(ctx context.Context) error {
	return c.do(ctx, "exit", func() error {
		if err := c.requestNothing(ctx, header{op: opExit}, nil); err != nil {
			return err
		}
		return c.waitForEnd(ctx)
	})
}

func (c *Client) waitForEnd(ctx context.Context) error {
	ends := []<-chan struct{}{c.done}
	if c.child != nil {
		ends = append(ends, c.child.over)
	}
	for _, end := range ends {
		select {
		case <-end:
		case <-ctx.Done():
			return plain.ContextErr(ctx)
		}
	}
	return nil
}
