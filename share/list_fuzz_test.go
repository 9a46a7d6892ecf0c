package share

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/sock"
)

// Records of a producer that is asked for a list, by number after actHonest.
const (
	listNothing = actHonest + iota
	listOne
	listTwoOfThree
	listTheRest
	listProgress
	listRefuse
	listIgnorable
)

// FuzzList makes a producer say anything, with files, to a consumer that asks it for a list.
// Invariant 2: List ends, keeps no descriptor, and returns no more than it takes, or an
// error.
func FuzzList(f *testing.F) {
	l, err := sock.Listen(socketPath(f))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = l.Close() })
	one := wire.Listing{Name: "weights", Access: ReadOnly, Handle: HandleFD, Size: 1, Generation: 2}
	two := []wire.Listing{one, one}
	says := []wire.Message{
		wire.Listed{}, wire.Listed{Offers: two[:1]}, wire.Listed{Left: 1, Offers: two}, wire.Listed{Offers: two[:1]},
		wire.Progress{Done: 1, Total: 2}, wire.Refuse{Code: RefusedBusy, Text: "no"}, wire.Unknown{Kind: 0x7f00},
	}
	for _, seed := range [][]byte{
		nil, act(listNothing), act(listOne), slices.Concat(act(listTwoOfThree), act(listTheRest)), act(listTwoOfThree),
		slices.Concat(act(listTwoOfThree), act(listTwoOfThree)), slices.Concat(act(listTwoOfThree), act(listNothing)),
		act(listProgress), act(listRefuse), slices.Concat(act(listIgnorable), act(listOne)), act(listOne, 0),
		slices.Concat(flawed(16, 9), act(listOne)), slices.Concat(flawed(20, 9), act(listOne)), slices.Concat(flawed(24, 0), act(listOne)),
	} {
		f.Add(seed)
	}
	for _, v := range recordsOfVectors(f) {
		f.Add(raw(v))
	}
	files := odds(f)
	before := settledDescriptors(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		over := make(chan error, 1)
		go func() { over <- produce(ctx, l, &script{b, says, files}) }()
		all, err := List(ctx, l.Path())
		switch {
		case ctx.Err() != nil:
			t.Fatalf("List does not end: %v", err)
		case len(all) > MaxListed, err != nil && all != nil:
			t.Fatalf("%d offers, %v", len(all), err)
		}
		if err := <-over; err != nil {
			t.Fatal(err)
		}
		requireDescriptors(t, before)
	})
}
