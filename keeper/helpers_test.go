package keeper

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/server"
	"github.com/gpufd/gpufd/vmm"
)

// storeArgument runs the test binary as an fd store.
const storeArgument = "fd-store"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == storeArgument {
		if err := server.RunStore(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := os.Setenv("GPUFD_SOFT_DEVICES", "2"); err != nil { // of the software driver alone
		panic(err)
	}
	cutest.Main(m, nil)
}

// soon is a deadline for what should happen at once.
func soon(t testing.TB) context.Context {
	t.Helper()
	patience := 30 * time.Second
	if cutest.Emulated() {
		patience *= 4 // keepers start slowly there
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// opened is a keeper at socket, which ends with the test.
func opened(t testing.TB, socket string) *server.Server {
	t.Helper()
	s := ok(server.Open(soon(t), server.Options{Socket: socket, Store: []string{"/proc/self/exe", storeArgument}, Timeout: 20 * time.Second}))(t)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// dialled is a client of the keeper at socket, which ends with the test.
func dialled(t testing.TB, socket string) *Client {
	t.Helper()
	c := ok(Dial(soon(t), socket))(t)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// kept is a keeper and a client of it. Its fd store ends with the test.
func kept(t testing.TB) (*server.Server, *Client, *cu.Device) {
	t.Helper()
	dev, dir := cutest.Device(t), ok(os.MkdirTemp("/tmp", "keeper"))(t)
	socket := filepath.Join(dir, "socket")
	t.Cleanup(func() {
		require.NoError(t, errOf(server.End(soon(t), socket)))
		require.NoError(t, os.RemoveAll(dir))
	})
	return opened(t, socket), dialled(t, socket), dev
}

// small is the size of parts of which it does not matter.
const small = 4096

// part is one that is filled with a byte.
func part(i int, dev *cu.Device, fill byte) Part {
	return Part{Index: i, Device: dev, Size: small, Write: writeAll(fill)}
}

func writeAll(fill byte) func(context.Context, *vmm.Buffer) error {
	return func(_ context.Context, b *vmm.Buffer) error {
		c, err := b.Device().PrimaryContext()
		if err != nil {
			return err
		}
		defer c.Close()
		return cu.Fill(c, b.Ptr(), fill, b.Size())
	}
}

// put keeps a version of one part.
func put(t testing.TB, c *Client, dev *cu.Device, name string, fill byte) Kept {
	t.Helper()
	return ok(c.Put(soon(t), Put{Name: name}, part(0, dev, fill)))(t)
}

// attach takes all parts of a name, which are let go with the test.
func attach(t testing.TB, c *Client, dev *cu.Device, name string) []*Attached {
	t.Helper()
	all := ok(Attach(soon(t), dev.Driver(), c, name, Want{}))(t)
	t.Cleanup(func() { letGoOf(t, all) })
	return all
}

func letGoOf(t testing.TB, all []*Attached) {
	t.Helper()
	for _, a := range all {
		require.NoError(t, a.Close())
	}
}

// requireBytes requires that a part holds nothing but a byte, and has the digest that its
// writer declared.
func requireBytes(t testing.TB, a *Attached, fill byte) {
	t.Helper()
	c := ok(a.Device().PrimaryContext())(t)
	defer c.Close()
	got := make([]byte, a.Size())
	require.NoError(t, cu.CopyToHost(c, got, a.Ptr()))
	for i, b := range got {
		require.Equal(t, fill, b, i)
	}
	require.Equal(t, a.Data.Digest, ok(a.Digest(soon(t)))(t))
}

func stat(t testing.TB, c *Client, name string) api.Info {
	t.Helper()
	return ok(c.Stat(soon(t), name))(t)
}

// eventually waits until a name is as it should be.
func eventually(t testing.TB, c *Client, name string, is func(api.Info) bool) api.Info {
	t.Helper()
	var info api.Info
	require.Eventually(t, func() bool {
		info = stat(t, c, name)
		return is(info)
	}, waitLong, waitStep)
	return info
}

// requireCode requires err to be a keeper's refusal with that code.
func requireCode(t testing.TB, code string, err error) {
	t.Helper()
	var no *api.Error
	require.ErrorAs(t, err, &no)
	require.Equal(t, code, string(no.Code), no.Message)
}

// The time that a test waits for what comes by itself, and the pause before it looks again.
const (
	waitLong = 20 * time.Second
	waitStep = 5 * time.Millisecond
)
