package server

import (
	"fmt"
	"testing"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/gpumem"
	"github.com/gpufd/gpufd/internal/wire"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
)

// benchmarked is a keeper in a process of its own, with so many names of the same memory.
func benchmarked(b *testing.B, names int) (socket string, dev *cu.Device) {
	b.Helper()
	socket, dev = newSocket(b), cutest.Device(b)
	cmd := ok(mortal(b.Context(), socket, ""))(b)
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	putMany(b, awaitKeeper(b, socket), dev, names)
	return socket, dev
}

// BenchmarkAttach measures a reader's way from a name to its mapping and back, and BenchmarkList
// the least that it takes to ask a keeper something over a new connection.
func BenchmarkAttach(b *testing.B) {
	for _, names := range []int{1, 200} {
		b.Run(fmt.Sprint(names), func(b *testing.B) {
			socket, dev := benchmarked(b, names)
			for b.Loop() {
				att, err := share.Attach(b.Context(), socket, "many/n0000", dev, nil)
				if err != nil {
					b.Fatal(err)
				}
				if err := att.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkList(b *testing.B) {
	socket, _ := benchmarked(b, 1)
	for b.Loop() {
		if _, err := share.List(b.Context(), socket, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAuthorize measures what the keeper does itself to decide whether a reader gets a part
// that many have.
func BenchmarkAuthorize(b *testing.B) {
	s, c, dev := kept(b)
	putMany(b, c, dev, 200)
	for range 64 {
		attach(b, c, dev, "many/n0000")
	}
	eventually(b, c, "many/n0000", func(i api.Info) bool { return len(i.Holders) == 64 })
	o := wire.Offer{Name: "many/n0000"}
	peer := sock.Peer{UID: s.self().UID, GID: s.self().GID, PID: s.self().PID}
	for b.Loop() {
		if err := s.authorize(peer, o, gpumem.ReadOnly); err != nil {
			b.Fatal(err)
		}
	}
}
