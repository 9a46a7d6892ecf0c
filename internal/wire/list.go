package wire

import (
	"errors"
	"fmt"

	"github.com/gpufd/gpufd/gpumem"
)

const (
	maxListed   = 4096 // bytes of a record of a list; one offer always fits
	listingSize = 46   // bytes of a listing, without its length, the name and its counts
	countsSize  = 8
)

// size returns how many bytes a listing has, without its length.
func (l *Listing) size() int {
	if l.Counts.Told {
		return listingSize + len(l.Name) + countsSize
	}
	return listingSize + len(l.Name)
}

// Lists makes the messages of a list of offers, with as many in each as fit a record.
func Lists(all []Listing) (list []Listed) {
	for {
		n, size := 0, headerSize+8
		for ; n < len(all); n++ {
			if size += 2 + all[n].size(); size > maxListed {
				break
			}
		}
		list = append(list, Listed{Left: len(all) - n, Offers: all[:n]})
		if all = all[n:]; len(all) == 0 {
			return list
		}
	}
}

// Continues checks that m can follow a record that left that many offers to list.
func (m Listed) Continues(left int) error {
	if m.Left+len(m.Offers) != left {
		return fmt.Errorf("%w: a list with %d offers and %d to come, where %d were to come", ErrMalformed, len(m.Offers), m.Left, left)
	}
	return nil
}

type listedDecoder struct {
	noFields
	m Listed
}

func (d *listedDecoder) message() Message { return d.m }

func (d *listedDecoder) read(r *reader) error {
	d.m.Left = int(r.u32())
	n := int(r.u16())
	r.take(2) // reserved
	for range n {
		size := int(r.u16())
		if r.short || size > len(r.b) {
			r.short = true
			return nil
		}
		l, err := listing(&reader{b: r.take(size)})
		if err != nil {
			return err
		}
		d.m.Offers = append(d.m.Offers, l)
	}
	if n == 0 && d.m.Left > 0 {
		return fmt.Errorf("it lists nothing, and %d offers are to come", d.m.Left)
	}
	return nil
}

// listing reads what a list says of one offer. A longer one is of a later version,
// whose beginning this is.
func listing(r *reader) (l Listing, err error) {
	l.Driver, l.Access, l.Handle = gpumem.Kind(r.u8()), gpumem.Access(r.u8()), HandleType(r.u8())
	if l.Pending, err = r.flag(); err != nil {
		return l, err
	}
	l.Device = gpumem.UUID(r.take(16))
	for _, v := range []*uint64{&l.Size, &l.Generation, &l.DataSize} {
		*v = r.u64()
	}
	if l.Name, err = r.text(MaxName); err != nil {
		return l, err
	}
	if r.short {
		return l, errors.New("an offer in too few bytes")
	}
	if len(r.b) >= countsSize {
		l.Counts = Counts{true, r.u32(), r.u32()}
	}
	return l, errors.Join(CheckAccess(l.Access), CheckName(l.Name))
}
