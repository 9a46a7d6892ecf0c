package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/vmm"
)

// An importer is ours: a consumer of chunks, whose descriptors it has inherited from 3 on.
type importer struct {
	dev   *cu.Device
	g     uint64     // granularity
	files []*os.File // as many as were asked for
}

// serveImports answers what bench/c/chunks.c does. Like that, it holds the primary context, as those
// do who use memory.
func serveImports(drv *cu.Driver, stdin io.Reader, stdout io.Writer) error {
	dev, err := drv.Device(0)
	if err != nil {
		return err
	}
	ctx, err := dev.PrimaryContext()
	if err != nil {
		return err
	}
	g, err := vmm.Granularity(dev)
	if err == nil {
		im := &importer{dev: dev, g: g}
		err = rival.Serve(stdin, stdout, rival.Answer{Name: ours}, map[string]rival.Handler{"chunks": im.chunks})
	}
	return errors.Join(err, ctx.Close())
}

// chunks N SIZE attaches to the first N chunks, of SIZE bytes each, and lets go of them.
func (im *importer) chunks(args []uint64) (a rival.Answer, err error) {
	if len(args) != 2 || args[0] < 1 || args[0] > vmm.MaxChunks || args[1] == 0 {
		return a, errors.New("want chunks N SIZE")
	}
	for uint64(len(im.files)) < args[0] {
		fd := 3 + len(im.files)
		im.files = append(im.files, os.NewFile(uintptr(fd), fmt.Sprint("chunk ", fd-3)))
	}
	d := vmm.Descriptor{Kind: im.dev.Driver().Kind(), Device: im.dev.UUID(), Size: args[0] * args[1],
		ChunkSize: args[1], Chunks: int(args[0]), Granularity: im.g, Generation: 1}
	a.Steps = make([]rival.Step, 0, 8)
	note := func(name string, took time.Duration) {
		a.Steps = append(a.Steps, rival.Step{Side: "consumer", Name: name, NS: took.Nanoseconds()})
	}
	begin := time.Now()
	b, err := vmm.Import(im.dev, d, im.files[:d.Chunks], vmm.OnStep(func(s vmm.Step) { note(s.Op.String(), s.Took) }))
	if err != nil {
		return a, err
	}
	mapped := time.Now()
	err = b.Unmap()
	unmapped := time.Now()
	err = errors.Join(err, b.Close())
	note(unmap, unmapped.Sub(mapped))
	note(release, time.Since(unmapped))
	a.NS = mapped.Sub(begin).Nanoseconds()
	return a, err
}
