package ptx

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// A loan is memory that is withdrawn as soon as a kernel has read from it, and
// replaced by another, or by none.
type loan struct {
	first, then []byte
	withdrawals atomic.Uint64
	asked       chan struct{} // closed by the first read
	asks        atomic.Int32
}

func (l *loan) Piece(uint64, bool) ([]byte, uint64) {
	if l.asks.Add(1) == 1 {
		close(l.asked)
		return l.first, base
	}
	return l.then, base
}

// Memory that was withdrawn is asked for again at a thread's next access, by loads,
// stores and atomics, however often they had it before.
func TestWithdrawnMemory(t *testing.T) {
	const loop = "again: ld.u64 %r1, [%rd1]; setp.eq.u64 %p1, %r1, 0; @%p1 bra again; st.u64 [%rd2], %r1;"
	other := binary.LittleEndian.AppendUint64(nil, 7)
	other = append(other, make([]byte, 120)...)
	for name, tc := range map[string]struct {
		body string
		then []byte
		dies bool
	}{
		"a load finds the new memory": {loop, other, false},
		"a load finds none":           {loop, nil, true},
		"a store finds none":          {"again: st.u64 [%rd1], %r1; bra again;", nil, true},
		"an atomic finds none":        {"again: atom.add.u64 %r1, [%rd1], 1; bra again;", nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := &loan{first: make([]byte, 128), then: tc.then, asked: make(chan struct{})}
			go func() {
				<-l.asked
				l.withdrawals.Add(1)
			}()
			err := parsed(t, withdrawnKernel(tc.body)).Run(context.Background(), "k", Launch{
				Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}, Params: params(uint64(base), uint64(base+64)),
				Memory: l, Withdrawals: &l.withdrawals,
			})
			var fault *Fault
			if tc.dies {
				require.True(t, errors.As(err, &fault), "%v", err)
				require.Equal(t, IllegalAddress, fault.Kind)
				require.EqualValues(t, base, fault.Address)
				require.True(t, fault.Global)
				return
			}
			require.NoError(t, err)
			require.EqualValues(t, 7, binary.LittleEndian.Uint64(other[64:]))
			require.Zero(t, binary.LittleEndian.Uint64(l.first[64:]))
		})
	}
}

func withdrawnKernel(body string) string {
	return formHeader + `.visible .entry k(.param .u64 in, .param .u64 out) {
	.reg .b64 %rd<3>; .reg .b64 %r<2>; .reg .pred %p<2>;
	ld.param.u64 %rd1, [in]; ld.param.u64 %rd2, [out]; mov.u64 %r1, 0;
	` + body + ` ret; }`
}
