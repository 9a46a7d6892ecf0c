package sock

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// cmsg builds one control message, padded as the kernel does.
func cmsg(level, kind int32, data []byte) []byte {
	msg := make([]byte, cmsgHeader, unix.CmsgSpace(len(data)))
	binary.NativeEndian.PutUint64(msg, uint64(cmsgHeader+len(data)))
	binary.NativeEndian.PutUint32(msg[8:], uint32(level))
	binary.NativeEndian.PutUint32(msg[12:], uint32(kind))
	msg = append(msg, data...)
	return msg[:cap(msg)]
}

func ints(values ...int32) (data []byte) {
	for _, v := range values {
		data = binary.NativeEndian.AppendUint32(data, uint32(v))
	}
	return data
}

// withLen makes the message lie about its length.
func withLen(msg []byte, size uint64) []byte {
	msg = slices.Clone(msg)
	binary.NativeEndian.PutUint64(msg, size)
	return msg
}

var (
	creds  = cmsg(unix.SOL_SOCKET, unix.SCM_CREDENTIALS, ints(1, 2, 3))
	rights = cmsg(unix.SOL_SOCKET, unix.SCM_RIGHTS, ints(5, 6, 7))
)

var controlCases = []struct {
	name string
	oob  []byte
	fds  []int
	bad  bool
}{
	{"nothing", nil, nil, false},
	{"one descriptor", unix.UnixRights(9), []int{9}, false},
	{"descriptors 0 to 2", unix.UnixRights(0, 1, 2), []int{0, 1, 2}, false},
	{"three descriptors", rights, []int{5, 6, 7}, false},
	{"without padding at the end", rights[:cmsgHeader+12], []int{5, 6, 7}, false},
	{"rights without descriptors", unix.UnixRights(), nil, false},
	{"two messages of rights", slices.Concat(rights, unix.UnixRights(8)), []int{5, 6, 7, 8}, false},
	{"credentials alone", creds, nil, true},
	{"credentials, then rights", slices.Concat(creds, rights), []int{5, 6, 7}, true},
	{"rights, then credentials", slices.Concat(rights, creds), []int{5, 6, 7}, true},
	{"a pidfd is a descriptor, too", slices.Concat(rights, cmsg(unix.SOL_SOCKET, scmPidfd, ints(8))), []int{5, 6, 7, 8}, true},
	{"same numbers on another level", cmsg(unix.SOL_IP, unix.SCM_RIGHTS, ints(5)), nil, true},
	{"descriptor -1", cmsg(unix.SOL_SOCKET, unix.SCM_RIGHTS, ints(5, -1, 7)), []int{5, 7}, true},
	{"half a descriptor", cmsg(unix.SOL_SOCKET, unix.SCM_RIGHTS, ints(5, 6)[:6]), []int{5}, true},
	{"half a header", rights[:8], nil, true},
	{"rights, then half a header", slices.Concat(rights, creds[:10]), []int{5, 6, 7}, true},
	{"length beyond the end", withLen(rights, 1000), []int{5, 6, 7, 0}, true}, // the padding reads as a descriptor
	{"length 2^64-1", withLen(unix.UnixRights(5, 6), 1<<64-1), []int{5, 6}, true},
	{"length 0", withLen(unix.UnixRights(5, 6), 0), nil, true},
	{"rights, then length 0", slices.Concat(rights, withLen(creds, 0)), []int{5, 6, 7}, true},
}

// TestParseControl defends: whatever the kernel brought is found, also beside
// what is malformed or of another type (invariant 2).
func TestParseControl(t *testing.T) {
	for _, c := range controlCases {
		t.Run(c.name, func(t *testing.T) {
			fds, err := parseControl(c.oob)
			require.Equal(t, c.fds, fds)
			if c.bad {
				require.ErrorIs(t, err, ErrControl)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

// FuzzParseControl holds parseControl against the parser of x/sys: where that
// one understands everything, both must agree, and what is not pure rights must
// be an error.
//
//fault:rows 29
func FuzzParseControl(f *testing.F) {
	for _, c := range controlCases {
		f.Add(c.oob)
	}
	f.Fuzz(func(t *testing.T, oob []byte) {
		fds, err := parseControl(oob)
		require.LessOrEqual(t, len(fds), len(oob)/4)
		for _, fd := range fds {
			require.GreaterOrEqual(t, fd, 0)
		}
		want, pure := referenceParse(oob)
		if pure {
			require.NoError(t, err)
			require.Equal(t, want, fds)
		} else {
			require.ErrorIs(t, err, ErrControl)
		}
		for _, fd := range want {
			require.Contains(t, fds, fd)
		}
	})
}

// referenceParse is the same by means of x/sys. pure: nothing but rights with
// sane descriptors.
func referenceParse(oob []byte) (fds []int, pure bool) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	pure = err == nil
	consumed := 0
	for _, m := range msgs {
		consumed += unix.CmsgSpace(len(m.Data))
		if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS {
			pure = false
			continue
		}
		pure = pure && len(m.Data)%4 == 0
		m.Data = m.Data[:len(m.Data)&^3] // on half a descriptor, x/sys panics
		got, err := unix.ParseUnixRights(&m)
		pure = pure && err == nil
		for _, fd := range got {
			if int32(fd) < 0 {
				pure = false
				continue
			}
			fds = append(fds, fd)
		}
	}
	// x/sys ignores a tail shorter than a header; the kernel never makes one.
	return fds, pure && consumed >= len(oob)
}
