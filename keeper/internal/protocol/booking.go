package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/sock"
)

// A Booking is a part that a client is to deliver.
type Booking struct {
	Client *Client
	Ticket string
	Came   *Reply // a keeper's answer that the part had come before the last keeper was lost

	until time.Duration
}

// Book asks for room for a part, for so long.
func (c *Client) Book(ctx context.Context, r Request, until time.Duration) (*Booking, error) {
	r.Op, r.TimeoutMS = OpBook, until.Milliseconds()
	a, err := c.Ask(ctx, r)
	if err != nil {
		return nil, err
	}
	return &Booking{Client: c, Ticket: a.Ticket, until: until}, nil
}

// A Delivery is what a booked part turned out to be.
type Delivery struct {
	Memory *Memory
	Files  []*os.File // one per chunk; they stay the caller's
	Digest string
	Layout string          // or ""
	Table  json.RawMessage // told to readers, or nil
}

// Deliver hands the part over.
func (b *Booking) Deliver(ctx context.Context, d Delivery) (Reply, error) {
	if len(d.Table) > 0 {
		f, err := descriptor.Sealed("gpufd-table", d.Table)
		if err != nil {
			return Reply{}, err
		}
		_, err = b.Client.Ask(ctx, Request{Op: OpTable, Ticket: b.Ticket}, f)
		if err = errors.Join(err, f.Close()); err != nil {
			return Reply{}, fmt.Errorf("sending the table: %w", err)
		}
	}
	for files := d.Files; len(files) > 0; {
		n := min(len(files), sock.MaxFDs)
		if _, err := b.Client.Ask(ctx, Request{Op: OpFiles, Ticket: b.Ticket}, files[:n]...); err != nil {
			return Reply{}, fmt.Errorf("sending the descriptors: %w", err)
		}
		files = files[n:]
	}
	return b.Client.Ask(ctx, Request{Op: OpDeliver, Ticket: b.Ticket, Memory: d.Memory, Digest: d.Digest, Layout: d.Layout})
}

// Cancel gives the room up.
func (b *Booking) Cancel(ctx context.Context) error {
	_, err := b.Client.Ask(ctx, Request{Op: OpCancel, Ticket: b.Ticket})
	return err
}

// Renew resumes the ticket over a new connection, or finds that its part has come.
func (b *Booking) Renew(ctx context.Context) error {
	a, err := b.Client.Ask(ctx, Request{Op: OpRenew, Ticket: b.Ticket, TimeoutMS: b.until.Milliseconds()})
	if err == nil && a.Delivered {
		b.Came = &a
	}
	return err
}
