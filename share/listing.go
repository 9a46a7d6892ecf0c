package share

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpufd/gpufd/internal/wire"
)

// sayList sends the peer the list of the offers that the application lets it read. The
// error is why the peer is to be turned away.
func (v *visitor) sayList() error {
	s := v.server
	s.mu.Lock()
	there := s.there()
	all := make([]wire.Listing, len(there))
	for i, o := range there {
		all[i] = o.listing()
	}
	s.mu.Unlock()
	var list []wire.Listing
	for i, o := range there {
		if v.allows(o, 0) == nil && v.mayAsk(o.record.Name, ReadOnly) == nil {
			list = append(list, all[i])
		}
	}
	ctx, cancel := context.WithTimeoutCause(s.ctx, v.transport.timeout, ErrTimeout)
	defer cancel()
	for _, m := range wire.Lists(list) {
		if err := v.transport.send(ctx, m); err != nil {
			return err
		}
	}
	_ = v.transport.close(nil, v.transport.farewell())
	return nil
}

// there returns what is offered or prepared, sorted by name. It runs with mu held.
func (s *Server) there() []*offering {
	all := maps.Clone(s.offers)
	for name, e := range s.expected {
		if e.prepared != nil {
			all[name] = e.prepared
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b *offering) int {
		return strings.Compare(a.record.Name, b.record.Name)
	})
}

// listing returns what a list says of the offer. It runs with the server's mu held.
func (o *offering) listing() wire.Listing {
	r := o.record
	return wire.Listing{
		Name: r.Name, Driver: r.Memory.Kind, Device: r.Memory.Device, Handle: r.HandleType(), Access: r.Access,
		Size: r.Memory.Size, Generation: r.Memory.Generation, DataSize: max(r.DataSize, uint64(len(r.Data))), Pending: !o.published,
	}
}

// maxNamed is how many offers a refusal names.
const maxNamed = 10

// noOffer refuses a peer whose offer is not there. If it asked for the only offer and
// there are several, the refusal names them, unless the application decides who may
// see which offer. It runs with mu held.
func (s *Server) noOffer(name string) wire.Refuse {
	no := wire.Refuse{Code: RefusedName, Text: fmt.Sprintf("there is no offer %q here", name)}
	if name != "" {
		return no
	}
	no.Text = "there is not exactly one offer here; ask for one by its name"
	there := s.there()
	if s.opts.asks() || len(there) == 0 {
		return no
	}
	var names []string
	for _, o := range there[:min(len(there), maxNamed)] {
		names = append(names, fmt.Sprintf("%q", o.record.Name))
	}
	no.Text += ": " + strings.Join(names, ", ")
	if more := len(there) - len(names); more > 0 {
		no.Text += fmt.Sprintf(" and %d more", more)
	}
	return no
}
