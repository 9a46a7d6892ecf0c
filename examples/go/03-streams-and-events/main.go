// Lesson 3: streams and events.
//
// A stream does its work in order, apart from other streams. Where one has to
// wait for another, an event says so on the device; the host goes on. Waiting
// on the host can be given up, and leaves no thread behind.
//
// Prints:
//
//	queued, and the host goes on
//	the second stream saw the first one's work: true
//	a wait that is given up: context deadline exceeded
//	and the work is done all the same: true
//	the first stream took some time: true
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/examples/go/lesson"
)

func main() { lesson.Run(streams) }

const size = 32 << 20

func streams(_ *cu.Device, ctx *cu.Context) error {
	first, err1 := ctx.NewStream() // ctx's Close ends what is made here
	second, err2 := ctx.NewStream()
	begun, err3 := ctx.NewEvent(0)
	done, err4 := ctx.NewEvent(0)
	a, err5 := ctx.Alloc(size)
	b, err6 := ctx.Alloc(size)
	if err := errors.Join(err1, err2, err3, err4, err5, err6); err != nil {
		return err
	}

	got := make([]uint32, size/4)
	// Without WaitEvent the second stream might copy before the first has filled.
	err := errors.Join(
		begun.Record(first),
		cu.FillAsync(first, a, uint32(7), size/4),
		done.Record(first),
		second.WaitEvent(done),
		cu.CopyAsync(second, b, a, size),
		cu.CopyToHostAsync(second, got, b),
	)
	fmt.Println("queued, and the host goes on")
	err = errors.Join(err, second.Synchronize(context.Background()))
	fmt.Println("the second stream saw the first one's work:", got[0] == 7 && got[len(got)-1] == 7)

	// A stream can wait for a value in memory too. Nobody writes this one yet.
	err = errors.Join(err, cu.FillAsync(first, a, uint32(0), 1), done.Record(first), second.WaitEvent(done),
		second.WaitValue32(a.Ptr(), 1, cu.WaitEQ))
	deadline, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	fmt.Println("a wait that is given up:", second.Synchronize(deadline))

	err = errors.Join(err, first.WriteValue32(a.Ptr(), 1, 0), second.Synchronize(context.Background()))
	fmt.Println("and the work is done all the same:", err == nil)
	took, elapsed := done.Elapsed(begun)
	fmt.Println("the first stream took some time:", took > 0)
	return errors.Join(err, elapsed)
}
