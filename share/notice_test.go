package share

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func awaitNotice(t testing.TB, notices <-chan []byte) string {
	t.Helper()
	select {
	case b := <-notices:
		return string(b)
	case <-soon(t).Done():
		require.FailNow(t, "no notice comes")
		return ""
	}
}

// Each side tells the other, in order, whatever else they say. A consumer that does not take
// notices keeps the latest, and its lease.
func TestNotices(t *testing.T) {
	dev, ctx, srv := listening(t)
	leases := make(chan *Lease, 1)
	srv.Expect("data")
	put(t, srv, newBuffer(t, ctx, 1), OnLease(func(l *Lease) {
		if err := l.Notify(context.Background(), []byte("early")); err != nil {
			t.Error(err)
		}
		leases <- l
	}))
	att := attached(t, srv, "data", dev, WithRecordRate(0))
	l := <-leases
	require.Equal(t, "early", awaitNotice(t, att.Notices()), "before the memory")
	full := bytes.Repeat([]byte{0xff}, MaxNotice)
	for _, b := range [][]byte{[]byte("a"), {}, full} {
		require.NoError(t, l.Notify(soon(t), b))
		require.NoError(t, att.Progress(soon(t), 1, 2))
		require.NoError(t, att.Notify(soon(t), b))
		require.Equal(t, string(b), awaitNotice(t, att.Notices()))
		require.Equal(t, string(b), awaitNotice(t, l.Notices()))
	}
	for name, err := range map[string]error{"lease": l.Notify(soon(t), append(full, 0)), "attachment": att.Notify(soon(t), append(full, 0))} {
		require.ErrorContains(t, err, "4097 bytes", name)
	}

	const sent = 3 * 16
	for i := range sent {
		require.NoError(t, l.Notify(soon(t), fmt.Append(nil, i)))
	}
	for deadline := time.Now().Add(10 * time.Second); awaitNotice(t, att.Notices()) != fmt.Sprint(sent-1); {
		require.Less(t, time.Now(), deadline)
	}
	require.NoError(t, att.Err())
	require.NoError(t, att.Notify(soon(t), []byte("last")))
	require.NoError(t, att.Close())
	<-l.Done()
	require.Equal(t, "last", awaitNotice(t, l.Notices()), "after the end")
	require.ErrorIs(t, att.Notify(soon(t), nil), ErrClosed)
}

// A zero or nil Lease or Attachment has no notices, and sends none.
func TestNoticesOfNothing(t *testing.T) {
	for _, l := range []*Lease{nil, {}} {
		require.ErrorIs(t, l.Notify(t.Context(), nil), ErrClosed)
		require.Nil(t, l.Notices())
	}
	for _, a := range []*Attachment{nil, {}} {
		require.ErrorIs(t, a.Notify(t.Context(), nil), ErrClosed)
		require.Nil(t, a.Notices())
		require.ErrorIs(t, context.Cause(a.Context()), ErrClosed)
	}
}
