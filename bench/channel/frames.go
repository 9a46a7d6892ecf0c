package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
)

const (
	// mark is after how many frames a stream writes how far it is.
	mark = 16
	// ahead is how many frames a host queues before its stream has done them.
	ahead = 64
)

// A taking is a reader whose stream takes frames whose words are all their sequence.
type taking struct {
	*pair
	side
	copies bool
	check  *cu.Function
	module *cu.Module
	host   *cu.HostMemory
	wrong  *word // how many words were not
	done   *word // frames that the stream has done
}

func (s side) newTaking(path string, copies bool) (k *taking, err error) {
	k = &taking{side: s, copies: copies}
	if k.wrong, err = newWord(s.ctx); err != nil {
		return nil, err
	}
	if k.done, err = newWord(s.ctx); err != nil {
		return nil, err
	}
	if k.module, err = s.ctx.LoadModuleFile(s.ptx); err != nil {
		return nil, err
	}
	if k.check, err = k.module.Function("check_words"); err != nil {
		return nil, err
	}
	if k.pair, err = s.open(path, ""); err != nil {
		return nil, err
	}
	k.host, err = s.ctx.AllocHost(k.r.SlotSize(), 0)
	return k, err
}

func (k *taking) close() error {
	return errors.Join(k.pair.close(), k.host.Close(), k.module.Close(), k.wrong.close(), k.done.close())
}

// takeFrames takes frames, and returns how long one took once they were flowing.
func (s side) takeFrames(path string, last uint64, copies bool) (ns int64, err error) {
	k, err := s.newTaking(path, copies)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, k.close()) }()
	warm := last / 4 / mark * mark
	var begin time.Time
	for n := uint64(1); n <= last; n++ {
		if err := k.take(n); err != nil {
			return 0, err
		}
		if n%mark != 0 || n < ahead {
			continue
		}
		at, err := k.done.await(n - ahead)
		if err != nil {
			return 0, err
		}
		if n-ahead == warm {
			begin = at
		}
	}
	end, err := k.done.await(last)
	if err != nil {
		return 0, err
	}
	return end.Sub(begin).Nanoseconds() / int64(last-warm), k.verify(uint32(last))
}

// take queues what is done with one frame.
func (k *taking) take(n uint64) error {
	f, err := k.r.NextOn(k.s)
	if err != nil {
		return err
	}
	if k.copies {
		err = cu.CopyToHostAsync(k.s, k.host.Bytes(), f.Ptr())
	} else {
		count := f.Size() / 4
		blocks := uint32(min(1024, (count+255)/256))
		err = k.check.Launch(k.s, cu.LaunchConfig{Grid: cu.Dim3{X: blocks}, Block: cu.Dim3{X: 256}}, f.Ptr(), count, uint32(n), k.wrong.at)
	}
	if err != nil {
		return err
	}
	if err := k.r.ReleaseOn(k.s, f); err != nil || n%mark != 0 {
		return err
	}
	return k.s.WriteValue64(k.done.at, n, cu.WriteDefault)
}

// verify checks that all words that were looked at were right.
func (k *taking) verify(last uint32) error {
	if n := k.wrong.p.Load(); n != 0 {
		return fmt.Errorf("%d words of frames were wrong", n)
	}
	if b := k.host.Bytes(); k.copies && (binary.LittleEndian.Uint32(b) != last || binary.LittleEndian.Uint32(b[len(b)-4:]) != last) {
		return fmt.Errorf("the last frame begins with %#x and ends with %#x, not with %#x", b[:4], b[len(b)-4:], last)
	}
	return nil
}

// writeFrames writes frames by a stream. Their words are their sequence.
func (s side) writeFrames(w *channel.Writer, count uint64) (err error) {
	stream, err := s.ctx.NewStream()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stream.Close()) }()
	done, err := newWord(s.ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done.close()) }()
	for n := uint64(1); n <= count; n++ {
		slot, err := w.AcquireOn(stream)
		if err != nil {
			return err
		}
		if err := cu.FillAsync(stream, slot.Ptr(), uint32(n), slot.Size()/4); err != nil {
			return err
		}
		if err := w.PublishOn(stream, slot, channel.Meta{}); err != nil {
			return err
		}
		if n%mark != 0 {
			continue
		}
		if err := stream.WriteValue64(done.at, n, cu.WriteDefault); err != nil {
			return err
		}
		if _, err := done.await(max(n, ahead) - ahead); err != nil {
			return err
		}
	}
	_, err = done.await(count)
	return err
}
