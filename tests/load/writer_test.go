package load

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/gpufd/gpufd/fence"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// endlessKernel counts in a word, without end.
const endlessKernel = `.version 7.4
.target sm_75
.address_size 64
.visible .entry endless(.param .u64 p)
{
	.reg .b64 %rd<2>;
	.reg .b32 %r<2>;
	ld.param.u64 %rd1, [p];
	mov.u32 %r1, 0;
again:
	add.u32 %r1, %r1, 1;
	st.volatile.global.u32 [%rd1], %r1;
	bra again;
}
`

// writeForEver is killed while its kernel writes, on device number do.Count.
func writeForEver(do task) error {
	st := testenv.Got(openStageOn(do.Count))
	att := testenv.Got(share.Attach(context.Background(), do.Socket, cli.OfferName, st.dev, &share.AttachOptions{Access: cu.ReadWrite, PeerAccess: true}))
	mod := testenv.Got(st.ctx.LoadModule([]byte(endlessKernel)))
	kernel := testenv.Got(mod.Function("endless"))
	stream := testenv.Got(st.ctx.NewStream())
	testenv.Must(kernel.Launch(stream, cu.LaunchConfig{Grid: cu.Dim3{X: 1, Y: 1, Z: 1}, Block: cu.Dim3{X: 1, Y: 1, Z: 1}}, att.Ptr()))
	_, _ = io.Copy(io.Discard, os.Stdin)
	os.Exit(1) // nobody has killed it
	return nil
}

// judgeWriters offers memory to so many writers, one after the other, and says of each what
// became of its writing.
func judgeWriters(do task) error {
	st := testenv.Got(openStage())
	srv, err := share.Listen(do.Socket, nil)
	if err != nil {
		return errors.Join(err, st.close())
	}
	for n := range do.Count {
		if err = st.judge(srv, n); err != nil {
			break
		}
	}
	return errors.Join(err, srv.Close(), st.close())
}

// judge says when the word moves, whether it moves when the lease has ended, and whether it
// does when the writer is fenced and the memory was handed back.
func (st *stage) judge(srv *share.Server, n int) error {
	buf, err := vmm.New(st.dev, 8)
	if err != nil {
		return err
	}
	if err := cu.Fill(st.ctx, buf.Ptr(), uint32(0), 2); err != nil {
		return errors.Join(err, buf.Close())
	}
	limit, cancel := context.WithTimeout(context.Background(), programs.Patience)
	defer cancel()
	leases := make(chan *share.Lease, 1)
	offer, err := srv.Offer(cli.OfferName, buf, &share.OfferOptions{Access: cu.ReadWrite, MaxConsumers: 1, Fence: fence.Fenced, FenceTimeout: programs.Patience, OnLease: func(l *share.Lease) { leases <- l }})
	if err != nil {
		return errors.Join(err, buf.Close())
	}
	fmt.Println("offered", n)
	for first := st.word(buf); st.word(buf) == first && limit.Err() == nil; {
	}
	fmt.Println("written", n)
	l := <-leases
	<-l.Done()
	late := st.moves(buf, l.Fenced())
	<-offer.Done()
	err = offer.Err()
	pause, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	after := st.moves(buf, pause.Done())
	var lost *sock.LostError
	fmt.Printf("round %d pid %d died %t late %t after %t\n", n, l.Peer().PID, errors.As(l.Err(), &lost) && lost.Died(), late, after)
	return errors.Join(err, buf.Close())
}

// moves reports whether the word changes until then.
func (st *stage) moves(buf *vmm.Buffer, until <-chan struct{}) (moved bool) {
	for first := st.word(buf); ; {
		moved = moved || st.word(buf) != first
		select {
		case <-until:
			return moved
		default:
		}
	}
}

// word is the first of the memory.
func (st *stage) word(buf *vmm.Buffer) uint32 {
	b := make([]byte, 4)
	if err := cu.CopyToHost(st.ctx, b, buf.Ptr()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return binary.LittleEndian.Uint32(b)
}

// FAULTS 82: a writer is killed while its kernel writes. On a GPU it goes on writing when its
// lease has ended; when it is fenced it does not, and only then the memory is handed back.
func TestFault82_WriterIsKilledWhileItsKernelWrites(t *testing.T) {
	for _, apart := range []bool{false, true} {
		name := "in one PID namespace"
		if apart {
			name = "in two"
		}
		t.Run(name, func(t *testing.T) {
			var front []string
			if apart {
				front = cutest.Namespaced(t)
			}
			late := killWriters(t, front, 0)
			if cutest.Kind() == cu.CUDA {
				require.Positive(t, late, "if a dead writer did not write, this would test nothing")
			}
		})
	}
}

// A kernel on another GPU writes by peer access, and no write of it is under way when it is fenced.
func TestWriterOnAnotherDeviceIsKilled(t *testing.T) {
	a, b := cutest.TwoDevices(t, cutest.Driver(t))
	can, err := b.CanAccessPeer(a)
	require.NoError(t, err)
	if !can {
		t.Skip("takes two devices that reach each other")
	}
	killWriters(t, nil, 1)
}

// killWriters kills writers on that device while their kernels write, and returns how many of them
// wrote when their lease had ended.
func killWriters(t *testing.T, front []string, device int) (late int) {
	t.Helper()
	rounds := map[cu.Kind]int{cu.Soft: 2, cu.CUDA: 10}[cutest.Kind()]
	s := programs.NewScene(t)
	judge := childBehind(s, front, actJudge, task{Count: rounds})
	for n := range rounds {
		judge.WaitLine(fmt.Sprint("offered ", n))
		writer := childBehind(s, front, actWriter, task{Count: device})
		judge.WaitLine(fmt.Sprint("written ", n))
		writer.Kill()
		line := judge.WaitLine(fmt.Sprintf("round %d ", n))
		require.Equal(t, front != nil, strings.Contains(line, " pid 0 "), line)
		require.Contains(t, line, " died true ")
		require.True(t, strings.HasSuffix(line, " after false"), line)
		if strings.Contains(line, " late true ") {
			late++
		}
	}
	judge.Succeeds()
	t.Logf("in %d of %d rounds the word moved when the lease had ended", late, rounds)
	return late
}
