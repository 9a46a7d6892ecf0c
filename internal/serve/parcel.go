package serve

import (
	"fmt"
	"os"

	"github.com/gpufd/gpufd/internal/descriptor"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// setData adds application data to the offering. If it does not fit an OFFER, it goes into
// a file, and every consumer gets a descriptor.
func (o *Offering) setData(b []byte) (err error) {
	if len(b) <= wire.MaxData {
		o.Record.Data = append([]byte(nil), b...)
		return nil
	}
	o.Record.DataSize = uint64(len(b))
	o.data, err = newDataFile(b)
	return err
}

// newDataFile makes a sealed file of b.
func newDataFile(b []byte) (*os.File, error) {
	f, err := descriptor.Sealed("gpufd data", b)
	if err != nil {
		return nil, fmt.Errorf("share: %d bytes of application data: %w", len(b), err)
	}
	return f, nil
}

// A parcel is one record of an offer, with the files that go along.
type parcel struct {
	record []byte
	files  []*os.File
}

// parcels returns what a consumer is sent.
func (o *Offering) parcels(m wire.Offer) (all []parcel) {
	if m.Resume == 0 && o.isAbsent() {
		return nil
	}
	files := o.loan.Files
	if m.Resume != 0 {
		files = nil
	}
	for _, record := range m.Records(len(files)) {
		n := min(len(files), sock.MaxFDs)
		all = append(all, parcel{record, files[:n]})
		files = files[n:]
	}
	if o.data != nil {
		all = append(all, parcel{wire.Encode(wire.Data{}), []*os.File{o.data}})
	}
	return all
}

// recordsFor returns the records of the offer for a consumer that has mapped memory of
// generation resume already, or for others if that is 0.
func (o *Offering) recordsFor(resume uint64, pending bool) ([]parcel, error) {
	o.server.mu.Lock()
	defer o.server.mu.Unlock()
	switch {
	case resume != 0:
		m := o.Record
		m.Resume, m.Pending = resume, pending
		return o.parcels(m), nil
	case o.isAbsent():
		return nil, errAbsent
	case pending:
		return o.early, nil
	}
	return o.records, nil
}
