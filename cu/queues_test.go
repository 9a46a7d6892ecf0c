package cu_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/testenv"
)

// waitingEnv is how many streams of a child wait.
const waitingEnv = testenv.Prefix + "WAITING"

// A few streams that wait leave all others to go on. On a GPU 16 hold up all work of their
// context.
func TestStreamsPassThoseThatWait(t *testing.T) {
	for _, n := range map[cu.Kind][]int{cu.Soft: {4, 1000}, cu.CUDA: {4}}[cutest.Kind()] {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			limited, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			out, err := cutest.Child(limited, "streams that wait", fmt.Sprint(waitingEnv, "=", n)).CombinedOutput()
			t.Logf("%s", out)
			require.NoError(t, err)
			require.Equal(t, 15, strings.Count(string(out), ": goes on\n"), "all routes")
		})
	}
}

// A route is work that may get past streams that wait.
type route struct {
	name string
	in   *cu.Stream
	do   func(*cu.Stream) error
}

// childStreamsWait has streams wait for a word that nobody writes, and says which work goes on
// meanwhile. It ends without closing them: closing their context would wait for them.
func childStreamsWait() error {
	cutest.ExpectLeaks()
	n := get(strconv.Atoi(os.Getenv(waitingEnv)))
	dev := get(get(cutest.Open()).Device(0))
	ctx := get(dev.PrimaryContext())
	mem := get(ctx.Alloc(4096))
	must(cu.Fill(ctx, mem.Ptr(), uint8(0), 4096))
	word := mem.Ptr().Add(2048)
	urgent := cu.StreamOptions{Priority: math.MinInt32}
	streams := func(many int, o cu.StreamOptions) (all []*cu.Stream) {
		for range many {
			all = append(all, get(ctx.NewStreamWith(o)))
		}
		return all
	}
	early, first := streams(1, cu.StreamOptions{}), streams(1, urgent)
	waiting := streams(n, cu.StreamOptions{})
	late, last := streams(10, cu.StreamOptions{}), streams(2, urgent)
	for _, s := range waiting {
		must(s.WaitValue64(mem.Ptr(), 1, cu.WaitGEQ))
	}
	write := func(s *cu.Stream) error { return s.WriteValue64(word, 1, cu.WriteDefault) }
	read := func(s *cu.Stream) error { return cu.CopyToHostAsync(s, make([]uint64, 2), word) }
	copied := func(s *cu.Stream) error { return cu.CopyToDeviceAsync(s, word, []uint64{1}) }
	routes := []route{
		{"write in the most urgent stream", first[0], write},
		{"write in another of the most urgent streams, made later", last[0], write},
		{"copy to the device in a most urgent stream", last[1], copied},
		{"write in a stream made before", early[0], write},
	}
	for i, s := range late[:8] {
		routes = append(routes, route{fmt.Sprint("write in stream ", i, " made later"), s, write})
	}
	routes = append(routes,
		route{"copy to the device in a stream made later", late[8], copied},
		route{"read in the most urgent stream", first[0], read},
		route{"read in a stream made later", late[9], read})
	for _, r := range routes {
		fmt.Printf("%s: %s\n", r.name, r.goesOn())
	}
	return nil
}

// goesOn says whether the work is done within a second.
func (r route) goesOn() string {
	limited, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- errors.Join(r.do(r.in), r.in.Synchronize(limited)) }() // a copy may itself wait
	select {
	case err := <-done:
		if err == nil {
			return "goes on"
		}
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	case <-limited.Done():
		return "does not return"
	}
}
