package state

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The outcome of a ticket is known after a restart, to its uid alone; the last 512 are
// remembered.
//
//fault:rows 91
func TestOutcome(t *testing.T) {
	s := New(open())
	two := book(t, s, newBooking("two", of("tx", 1, 2)))
	b := newBooking("two", of("tx", 0, 2))
	first := book(t, s, b)
	_, _, ok := s.Outcome(first, writer)
	require.False(t, ok, "it was not delivered")
	v, err := s.Deliver(first, partOf(s, b), t0)
	require.NoError(t, err)
	require.Nil(t, v)
	outcome := func(ticket string, who Who) string {
		s = restarted(t, s, open())
		version, missing, ok := s.Outcome(ticket, who)
		return fmt.Sprint(version, missing, ok)
	}
	require.Equal(t, "0 1 true", outcome(first, writer))
	require.Equal(t, "0 1 false", outcome(first, reader))
	require.Equal(t, "0 0 false", outcome(two, writer))
	_, err = s.Deliver(two, partOf(s, newBooking("two", of("tx", 1, 2))), t0)
	require.NoError(t, err)
	for _, ticket := range []string{first, two} {
		require.Equal(t, "1 0 true", outcome(ticket, writer))
		_, _, ok = s.Outcome(ticket, reader)
		require.False(t, ok)
	}
	require.NoError(t, s.Remove("two", owner))
	s.Retire(t0)
	require.Equal(t, "1 0 true", outcome(first, writer), "also when the version has gone")

	for n := range maxOutcomes - 1 {
		put(t, s, newBooking("x"))
		if n == maxOutcomes-3 {
			require.Equal(t, "1 0 true", outcome(first, writer))
		}
	}
	require.Equal(t, "0 0 false", outcome(first, writer))
	require.Equal(t, "1 0 true", outcome(two, writer))
	require.Equal(t, maxOutcomes, strings.Count(string(s.Encode()), "\noutcome "))
	_, _, ok = s.Outcome("", writer)
	require.False(t, ok)
	_, _, ok = (*State)(nil).Outcome("t1", writer)
	require.False(t, ok)
}

// A transaction that is given up leaves nothing.
func TestOutcomeOfNothing(t *testing.T) {
	s := New(open())
	b := newBooking("x", of("tx", 0, 2))
	ticket := book(t, s, b)
	require.NoError(t, errOf(s.Deliver(ticket, partOf(s, b), t0)))
	s.Expire(b.Deadline)
	_, _, ok := s.Outcome(ticket, writer)
	require.False(t, ok)
}

// Counts outlive a restart, bounded.
func TestCounts(t *testing.T) {
	s := New(open())
	require.Empty(t, s.Counts())
	before := string(s.Encode())
	s.SetCounts(nil)
	require.Equal(t, before, string(s.Encode()))
	next := s.Clone()
	next.SetCounts(map[string]uint64{"commits": 3, "big": 1<<64 - 1, "": 1, strings.Repeat("n", 65): 1, "a\n": 1})
	require.Empty(t, s.Counts(), "that is the clone's")
	next = restarted(t, next, open())
	require.Equal(t, map[string]uint64{"commits": 3, "big": 1<<64 - 1}, next.Counts())
	many := map[string]uint64{}
	for n := range 1000 {
		many[fmt.Sprint(n)] = 1
	}
	next.SetCounts(many)
	require.Len(t, restarted(t, next, open()).Counts(), maxCounts)
	(*State)(nil).SetCounts(many)
	require.Nil(t, (*State)(nil).Counts())

	for why, head := range map[string]string{
		"a count without":     `state {"last_id":9,"counts":{"":1}}`,
		"control character":   `state {"last_id":9,"counts":{"\u0001":1}}`,
		"of no version":       "state {\"last_id\":9}\noutcome {\"ticket\":\"t1\",\"uid\":1,\"version\":0}",
		"ticket \"x1\"":       "state {\"last_id\":9}\noutcome {\"ticket\":\"x1\",\"uid\":1,\"version\":1}",
		"id 10 comes twice":   "state {\"last_id\":9}\noutcome {\"ticket\":\"t10\",\"uid\":1,\"version\":1}",
		"id 1 comes twice":    "state {\"last_id\":9}\noutcome {\"ticket\":\"t1\",\"uid\":1,\"version\":1}\noutcome {\"ticket\":\"t1\",\"uid\":1,\"version\":1}",
		"cannot unmarshal":    `state {"last_id":9,"counts":{"a":-1}}`,
		"instead of the stat": `outcome {"ticket":"t1","uid":1,"version":1}`,
	} {
		require.ErrorContains(t, errOf(Decode(sealed(head+"\n"), open())), why)
	}
}
