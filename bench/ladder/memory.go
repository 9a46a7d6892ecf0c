package main

import (
	"errors"
	"os"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// steps notes how long parts take; At is absolute.
type steps struct {
	side string
	all  []rival.Step
}

func (s *steps) took(name string, from int64) {
	s.all = append(s.all, rival.Step{Side: s.side, Name: name, At: from, NS: rival.Now() - from})
}

func (s *steps) of(v vmm.Step) { s.took(v.Op.String(), rival.Now()-v.Took.Nanoseconds()) }

// memory is a buffer of one process, made or imported.
type memory interface {
	export() error    // once
	file() *os.File   // what export made; the memory's
	at() cu.DevicePtr // the first address
	close() error
}

// make makes memory, in the order of c/handoff.c or of package vmm.
func (s *side) make(size uint64, st *steps) (memory, error) {
	if s.own(s.calls) == "vmm" {
		buf, err := vmm.New(s.dev, size, vmm.OnStep(st.of))
		return &typed{buf: buf}, err
	}
	return s.makeRaw(size, st)
}

// take imports and maps what came, and calls mapped at once when it is.
func (s *side) take(size uint64, came descriptor, st *steps, mapped func() error) (memory, error) {
	access := cu.ReadWrite
	if s.readOnly {
		access = cu.ReadOnly
	}
	switch s.own(s.calls) {
	case "vmm":
		d := vmm.Descriptor{
			Kind: s.dev.Driver().Kind(), Device: s.dev.UUID(), Size: size, ChunkSize: size, Chunks: 1,
			Granularity: granularity, Generation: 1,
		}
		f := came.toFile()
		defer f.Close() // after mapped
		buf, err := vmm.Import(s.dev, d, []*os.File{f}, vmm.WithAccess(access), vmm.OnStep(st.of))
		return &typed{buf: buf}, errors.Join(err, unless(err, mapped))
	case "cu":
		m, err := s.importOwned(size, came.toFile(), access, st)
		return m, errors.Join(err, unless(err, mapped))
	}
	m, err := s.importRaw(size, came, access, st)
	return m, errors.Join(err, unless(err, mapped))
}

// unless calls f if there was no error before.
func unless(err error, f func() error) error {
	if err != nil {
		return nil
	}
	return f()
}

// typed is memory of package vmm.
type typed struct {
	buf  *vmm.Buffer
	loan *vmm.Loan
}

func (t *typed) export() (err error) {
	t.loan, err = t.buf.Lend()
	return err
}

func (t *typed) file() *os.File   { return t.loan.Files[0] }
func (t *typed) at() cu.DevicePtr { return t.buf.Ptr() }
func (t *typed) close() error     { return errors.Join(t.loan.Close(), t.buf.Close()) }

// owned is imported memory of package cu.
type owned struct {
	drv    *cu.Driver
	handle *cu.MemHandle
	size   uint64
	ptr    cu.DevicePtr
	fd     *os.File
}

func (s *side) importOwned(size uint64, f *os.File, access cu.Access, st *steps) (m *owned, err error) {
	m = &owned{drv: s.dev.Driver(), size: size, fd: f}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"import", func() (err error) {
			if m.handle, err = m.drv.ImportMemory(f, size); err == nil {
				_, err = m.handle.Properties()
			}
			return err
		}},
		{"reserve", func() (err error) { m.ptr, err = m.drv.ReserveAddress(size, 0, 0); return err }},
		{"map", func() error { return m.drv.Map(m.ptr, size, 0, m.handle) }},
		{"access", func() error { return m.drv.SetAccess(m.ptr, size, access, s.dev) }},
	} {
		from := rival.Now()
		if err := step.do(); err != nil {
			return m, err
		}
		st.took(step.name, from)
	}
	return m, nil
}

func (m *owned) export() error    { return errors.New("imported memory") }
func (m *owned) file() *os.File   { return m.fd }
func (m *owned) at() cu.DevicePtr { return m.ptr }

func (m *owned) close() error {
	return errors.Join(m.drv.Unmap(m.ptr, m.size), m.drv.FreeAddress(m.ptr, m.size), m.handle.Close(), m.fd.Close())
}

// fill fills memory, writes salt at both ends, and waits until it is there.
func (s *side) fill(m memory, size, salt uint64) error {
	return errors.Join(
		cu.Fill(s.ctx, m.at(), uint8(0x5a), size),
		cu.CopyToDevice(s.ctx, m.at(), []uint64{salt}),
		cu.CopyToDevice(s.ctx, m.at().Add(size-8), []uint64{salt}),
		synchronize(s.ctx))
}

// read reads both ends.
func (s *side) read(m memory, size uint64) (salts [2]uint64, err error) {
	err = errors.Join(
		cu.CopyToHost(s.ctx, salts[:1], m.at()),
		cu.CopyToHost(s.ctx, salts[1:], m.at().Add(size-8)))
	return salts, err
}
