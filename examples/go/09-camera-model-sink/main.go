// Lesson 9: frames from process to process.
//
// A camera, a model and a sink are three processes. Frames go from the camera to the model
// through the camera's channel, and from the model to the sink through the model's channel.
// Both sides map the slots once; after that a frame is a number. The model blocks the camera
// when it is slower, so it misses nothing; a preview would drop the oldest.
//
// Prints:
//
//	camera: one reader has joined
//	sink: frame 1 is [10 20 30 40], camera 1
//	sink: frame 2 is [20 40 60 80], camera 2
//	sink: frame 3 is [30 60 90 120], camera 3
//	sink: the model has ended
//	camera: published 3 frames
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/gpufd/gpufd/channel"
	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/examples/go/lesson"
	"github.com/gpufd/gpufd/share"
)

const slots, numbers = 4, 4 // of a channel, and of a frame

func main() {
	wait, cancel := context.WithTimeout(context.Background(), time.Minute) // every wait ends
	defer cancel()
	roles := map[string]func(context.Context, *cu.Context, string) error{"model": model, "sink": sink}
	if len(os.Args) == 3 {
		lesson.Run(func(_ *cu.Device, ctx *cu.Context) error { return roles[os.Args[1]](wait, ctx, os.Args[2]) })
		return
	}
	lesson.Run(func(_ *cu.Device, ctx *cu.Context) error { return camera(wait, ctx) })
}

// write opens a channel and a socket of that name while f runs.
func write(wait context.Context, ctx *cu.Context, dir, name string, f func(*channel.Writer) error) (err error) {
	srv, err := share.Listen(filepath.Join(dir, name), nil)
	if err != nil {
		return err
	}
	defer lesson.Close(&err, srv)
	w, err := channel.NewWriter(wait, ctx, srv, name, slots, 4*numbers)
	if err != nil {
		return err
	}
	defer lesson.Close(&err, w) // readers get what was published, and then hear that this was all
	if err = w.AwaitReaders(wait, 1); err == nil {
		err = f(w)
	}
	return err
}

// publish puts a frame into the next free slot.
func publish(wait context.Context, ctx *cu.Context, w *channel.Writer, frame []float32, m channel.Meta) error {
	slot, err := w.Acquire(wait)
	if err != nil {
		return err
	}
	if err := cu.CopyToDevice(ctx, slot, frame); err != nil {
		return err
	}
	return w.Publish(slot, m)
}

// read waits for the channel of that name and calls do with every frame, until the writer
// ends. Follow would go on with the next writer.
func read(wait context.Context, ctx *cu.Context, dir, name string, do func(channel.Frame, []float32) error) error {
	x := make([]float32, numbers)
	for r, err := range channel.Follow(wait, filepath.Join(dir, name), name, ctx) {
		for err == nil {
			var f channel.Frame
			if f, err = r.Next(wait); errors.Is(err, channel.ErrEnded) {
				return nil
			}
			if err == nil {
				err = cu.CopyToHost(ctx, x, f)
			}
			if err == nil {
				err = errors.Join(r.Release(f), do(f, x))
			}
		}
		return err
	}
	return nil
}

// camera starts the other two, and publishes three frames.
func camera(wait context.Context, ctx *cu.Context) (err error) {
	dir, err := os.MkdirTemp("", "lesson")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, role := range []string{"model", "sink"} {
		cmd := exec.CommandContext(wait, os.Args[0], role, dir)
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			return err
		}
		defer func() {
			if err = errors.Join(err, cmd.Wait()); role == "model" && err == nil { // the last to be waited for
				fmt.Println("camera: published 3 frames")
			}
		}()
	}
	return write(wait, ctx, dir, "camera", func(w *channel.Writer) error {
		fmt.Println("camera: one reader has joined")
		for n := range 3 {
			x := float32(n + 1)
			if err := publish(wait, ctx, w, []float32{x, 2 * x, 3 * x, 4 * x}, channel.Meta{}); err != nil {
				return err
			}
		}
		return nil
	})
}

// model reads the camera's frames and publishes ten times what they are.
func model(wait context.Context, ctx *cu.Context, dir string) error {
	return write(wait, ctx, dir, "model", func(w *channel.Writer) error {
		return read(wait, ctx, dir, "camera", func(f channel.Frame, x []float32) error {
			for i := range x {
				x[i] *= 10
			}
			return publish(wait, ctx, w, x, channel.Meta{User: []byte{byte(f.Sequence)}})
		})
	})
}

// sink prints what the model says.
func sink(wait context.Context, ctx *cu.Context, dir string) error {
	err := read(wait, ctx, dir, "model", func(f channel.Frame, x []float32) error {
		fmt.Printf("sink: frame %d is %v, camera %d\n", f.Sequence, x, f.User()[0])
		return nil
	})
	fmt.Println("sink: the model has ended")
	return err
}
