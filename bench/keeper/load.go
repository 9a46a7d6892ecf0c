package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gpufd/gpufd/bench/internal/rival"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/safetensors"
	"github.com/gpufd/gpufd/vmm"
)

// A way is one of those that take turns. It returns how long it took.
type way struct {
	name    string
	measure func(ctx context.Context) (time.Duration, error)
}

// samples are the times of each way, in ns, round by round.
type samples map[string][]float64

// takeTurns measures the ways, in another order each round. What the first round
// takes is not counted: it warms all of them up.
func takeTurns(ctx context.Context, rounds int, ways []way) (samples, error) {
	s := samples{}
	for round := range rounds + 1 {
		for i := range ways {
			w := ways[(round+i)%len(ways)]
			took, err := w.measure(ctx)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			if round > 0 {
				s[w.name] = append(s[w.name], float64(took.Nanoseconds()))
			}
		}
	}
	return s, nil
}

const (
	limit    = "pinned memory to the device"
	ours     = "vmm.Buffer.Load"
	loadFile = "safetensors load_file"
)

// measureLoads measures how long each way takes to bring a model's file into GPU memory.
func measureLoads(ctx context.Context, dev *cu.Device, s settings) (_ samples, err error) {
	l := &loading{dev: dev, size: uint64(s.load)}
	defer l.close()
	if err := l.open(s.dir); err != nil {
		return nil, err
	}
	ways := []way{{limit, l.limit}, {ours, l.load}}
	if s.python != "" {
		r, err := rival.Start(ctx, loadFile, strings.Split(s.python, ",")...)
		if err != nil {
			return nil, err
		}
		defer func() { _ = r.Close() }() // what it measured counts
		ways = append(ways, asked(r, "load "+l.path))
	}
	return takeTurns(ctx, s.rounds, ways)
}

// asked is the way of a rival: a question.
func asked(r *rival.Rival, question string) way {
	return way{r.Name, func(ctx context.Context) (time.Duration, error) {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
		defer cancel()
		a, err := r.Ask(ctx, "%s", question)
		return time.Duration(a.NS), err
	}}
}

// loading is the file and where it goes.
type loading struct {
	dev    *cu.Device
	size   uint64
	path   string
	model  *safetensors.Model
	ctx    *cu.Context
	pinned *cu.HostMemory
}

func (l *loading) open(dir string) (err error) {
	if l.path, err = writeModel(dir, l.size); err != nil {
		return err
	}
	if l.model, err = safetensors.Open(l.path); err != nil {
		return err
	}
	if l.ctx, err = l.dev.PrimaryContext(); err != nil {
		return err
	}
	l.pinned, err = l.ctx.AllocHost(min(l.size, 64<<20), 0)
	return err
}

// close undoes what open did, as far as it came.
func (l *loading) close() {
	_ = l.pinned.Close()
	_ = l.ctx.Close()
	if l.model != nil {
		_ = l.model.Close()
	}
	_ = os.Remove(l.path)
}

// timed makes a buffer and measures f, which fills it.
func (l *loading) timed(f func(b *vmm.Buffer) error) (took time.Duration, err error) {
	b, err := vmm.New(l.dev, l.model.Table.Size)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	err = f(b)
	took = time.Since(begin)
	if closed := b.Close(); err == nil {
		err = closed
	}
	return took, err
}

// load reads the file's tensors, the workers and their pinned memory included.
func (l *loading) load(ctx context.Context) (time.Duration, error) {
	return l.timed(func(b *vmm.Buffer) error { return b.Load(ctx, l.model.Segments(), vmm.TransferOptions{}) })
}

// limit copies as much from memory that is pinned already.
func (l *loading) limit(ctx context.Context) (time.Duration, error) {
	return l.timed(func(b *vmm.Buffer) error {
		s, p := l.ctx.NullStream(), l.pinned
		for at := uint64(0); at < l.size; at += p.Size() {
			if err := cu.CopyToDeviceAsync(s, b.Ptr().Add(at), p.Bytes()[:min(p.Size(), l.size-at)]); err != nil {
				return err
			}
		}
		return s.Synchronize(ctx)
	})
}

// tensorBytes is how large the file's tensors are: those of models with 16 GiB are
// about that.
const tensorBytes = 256 << 20

// writeModel writes a file of about size bytes.
func writeModel(dir string, size uint64) (path string, err error) {
	f, err := os.CreateTemp(dir, "gpufd-bench-*.safetensors")
	if err != nil {
		return "", err
	}
	path = f.Name()
	err = writeTensors(f, size)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = os.Remove(path)
		return "", fmt.Errorf("writing %s: %w", filepath.Base(path), err)
	}
	return path, nil
}

func writeTensors(f *os.File, size uint64) error {
	t := safetensors.Table{Size: size}
	for at := uint64(0); at < size; at += tensorBytes {
		n := min(tensorBytes, size-at)
		t.Tensors = append(t.Tensors, safetensors.Tensor{Name: fmt.Sprintf("layer.%05d", at/tensorBytes), DType: "U8", Shape: []uint64{n}, Offset: at, Bytes: n})
	}
	head, _, err := t.Layout(size)
	if err != nil {
		return err
	}
	if _, err := f.Write(head); err != nil {
		return err
	}
	block := make([]byte, min(size, 64<<20))
	_, _ = rand.NewChaCha8([32]byte{1}).Read(block) // it does not fail
	for at := uint64(0); at < size; at += uint64(len(block)) {
		if _, err := f.Write(block[:min(uint64(len(block)), size-at)]); err != nil {
			return err
		}
	}
	return nil
}
