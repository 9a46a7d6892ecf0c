package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gpufd/gpufd/cu"
)

// A subject is a driver call made in one of several ways.
type subject struct{ call, how string }

// samples are times per chunk.
type samples struct {
	order []subject
	ns    map[subject][]float64
}

// time takes the time that f takes for n chunks.
func (s *samples) time(call, how string, n int, f func() error) error {
	start := time.Now()
	if err := f(); err != nil {
		return fmt.Errorf("%s, %s: %w", call, how, err)
	}
	took := time.Since(start)
	x := subject{call, how}
	if s.ns == nil {
		s.ns = map[subject][]float64{}
	}
	if s.ns[x] == nil {
		s.order = append(s.order, x)
	}
	s.ns[x] = append(s.ns[x], float64(took.Nanoseconds())/float64(n))
	return nil
}

// goroutines are how many share the work, where several can.
var goroutines = []int{1, 2, 4}

func among(n int) string {
	if n == 1 {
		return "one by one"
	}
	return fmt.Sprintf("%d goroutines", n)
}

// round makes n chunks, measures everything once, beginning with another way in
// each turn, and gives all back.
func (s *samples) round(dev *cu.Device, n, turn int) (err error) {
	size, _, err := dev.Granularity(cu.HandleFD)
	if err != nil {
		return err
	}
	handles := make([]*cu.MemHandle, n)
	defer func() {
		err = errors.Join(err, s.time("cuMemRelease", "one by one", n, func() error { return closeAll(handles) }))
	}()
	err = s.time("cuMemCreate", "one by one", n, func() (err error) {
		for i := range handles {
			if handles[i], err = dev.CreateMemory(size, cu.HandleFD); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, atOnce := range rotated([]bool{false, true}, turn) {
		if err := s.mapping(dev, handles, size, atOnce); err != nil {
			return err
		}
	}
	return s.sharing(dev, handles, size, turn)
}

// rotated is xs from another of them on, in turn.
func rotated[T any](xs []T, turn int) []T {
	turn %= len(xs)
	return slices.Concat(xs[turn:], xs[:turn])
}

// mapping maps the chunks side by side, and sets access and unmaps for all at
// once or for each.
func (s *samples) mapping(dev *cu.Device, handles []*cu.MemHandle, size uint64, atOnce bool) (err error) {
	drv, n, whole := dev.Driver(), len(handles), size*uint64(len(handles))
	p, err := drv.ReserveAddress(whole, 0, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, drv.FreeAddress(p, whole)) }()
	each := func(f func(at cu.DevicePtr, i int) error) error {
		for i := range handles {
			if err := f(p.Add(uint64(i)*size), i); err != nil {
				return err
			}
		}
		return nil
	}
	how, step := "one by one", size
	if atOnce {
		how, step = "at once", whole
	}
	overAll := func(f func(at cu.DevicePtr, size uint64) error) error {
		for at := uint64(0); at < whole; at += step {
			if err := f(p.Add(at), step); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.Join(
		s.time("cuMemMap", "one by one", n, func() error {
			return each(func(at cu.DevicePtr, i int) error { return drv.Map(at, size, 0, handles[i]) })
		}),
		s.time("cuMemSetAccess", how, n, func() error {
			return overAll(func(at cu.DevicePtr, size uint64) error { return drv.SetAccess(at, size, cu.ReadWrite, dev) })
		}),
		s.time("cuMemUnmap", how, n, func() error { return overAll(drv.Unmap) }),
	)
}

// sharing exports and imports the chunks from one goroutine and from several.
func (s *samples) sharing(dev *cu.Device, handles []*cu.MemHandle, size uint64, turn int) error {
	for _, g := range rotated(goroutines, turn) {
		files := make([]*os.File, len(handles))
		imports := make([]*cu.MemHandle, len(handles))
		err := s.time("cuMemExportToShareableHandle", among(g), len(handles), func() error {
			return share(len(handles), g, func(i int) (err error) { files[i], err = handles[i].Export(); return err })
		})
		if err == nil {
			err = s.time("cuMemImportFromShareableHandle", among(g), len(handles), func() error {
				return share(len(handles), g, func(i int) (err error) {
					imports[i], err = dev.Driver().ImportMemory(files[i], size)
					return err
				})
			})
		}
		for _, f := range files {
			if f != nil {
				err = errors.Join(err, f.Close())
			}
		}
		if err = errors.Join(err, closeAll(imports)); err != nil {
			return err
		}
	}
	return nil
}

// share calls f for 0 to n-1, from several goroutines.
func share(n, goroutines int, f func(i int) error) error {
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := g; i < n && errs[g] == nil; i += goroutines {
				errs[g] = f(i)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func closeAll(handles []*cu.MemHandle) error {
	var errs []error
	for _, h := range handles {
		if h != nil {
			errs = append(errs, h.Close())
		}
	}
	return errors.Join(errs...)
}
