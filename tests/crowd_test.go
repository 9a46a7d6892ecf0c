package tests

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/share"
)

// gather attaches as often as the task says, says so, stays until it is to halt,
// and then verifies and reports each.
func gather(do task) error {
	st, err := openStage()
	if err != nil {
		return err
	}
	var counts tally
	err = obey(func(ctx context.Context) error {
		atts, err := st.attachMany(do)
		if err == nil {
			counts.add(countAttached, len(atts))
			fmt.Println(countAttached)
			<-ctx.Done()
		}
		for _, att := range atts {
			soon, cancel := context.WithTimeout(context.Background(), do.Timeout)
			fault := st.look(att)
			err = errors.Join(err, fault, att.Report(soon, fault), att.Close())
			cancel()
			counts.add(countHandoffs, 1)
		}
		return err
	}, counts.all)
	return errors.Join(err, st.close())
}

// countAttached is what a crowd counts, and says when all are.
const countAttached = "attached"

// attachMany attaches from as many goroutines at once.
func (st *stage) attachMany(do task) (atts []*share.Attachment, err error) {
	type result struct {
		att *share.Attachment
		err error
	}
	ctx, cancel := context.WithTimeout(context.Background(), do.Timeout)
	defer cancel()
	results := make(chan result)
	for range do.Count {
		go func() {
			att, err := share.Attach(ctx, do.Socket, cli.OfferName, st.dev)
			results <- result{att, err}
		}()
	}
	for range do.Count {
		r := <-results
		if r.err != nil {
			err = errors.Join(err, r.err)
			continue
		}
		atts = append(atts, r.att)
	}
	return atts, err
}

// crowdSize is a thousand consumers in 50 processes, that is 20 attachments in
// each; on a GPU, where each process takes half a GiB for its context, 24
// processes with one each, or 64.
func crowdSize() (processes, each int) {
	switch {
	case cutest.Kind() == cu.CUDA && cutest.All():
		return 64, 1
	case cutest.Kind() == cu.CUDA:
		return 24, 1
	case cutest.Emulated():
		return 4, 4
	case testing.Short():
		return 10, 10
	}
	return 50, 20
}

// TestFault59_Crowd: a thousand consumers have the memory mapped at the same time,
// and then verify and leave. The producer is as before, and serves.
func TestFault59_Crowd(t *testing.T) {
	processes, each := crowdSize()
	s := newScene(t)
	server := s.actor(actServer, task{Timeout: patience})
	before, err := server.vitals()
	require.NoError(t, err)
	crowd := map[string]*process{}
	for i := range processes {
		crowd[strconv.Itoa(i+1)] = s.actor(actCrowd, task{Count: each, Timeout: patience})
	}
	begun := time.Now()
	require.NoError(t, complaint(tell(crowd, orderGo)))
	for _, c := range crowd {
		_, err := c.answer(countAttached)
		require.NoError(t, err)
	}
	all := processes * each
	eventually(t, func() bool { return mapped(t, server) == all }, "%d of %d consumers have mapped the memory",
		fmtFunc(func() any { return mapped(t, server) }), all)
	there, err := server.vitals()
	require.NoError(t, err)
	require.Zero(t, there.Counts[share.Ended.String()], "all are there at once")
	require.GreaterOrEqual(t, there.fds, before.fds+all, "each is a descriptor")
	t.Logf("%d consumers in %d processes attached within %s; the producer: %v", all, processes, time.Since(begun), there)

	require.NoError(t, complaint(tell(crowd, orderHalt)))
	for _, c := range crowd {
		v, err := c.vitals()
		require.NoError(t, err)
		require.Equal(t, map[string]int{countAttached: each, countHandoffs: each}, v.Counts)
		require.NoError(t, c.dismiss())
	}
	after, complaints := server.settle(before, anything, patience)
	require.NoError(t, complaint(complaints))
	require.Equal(t, all, after.Counts[countVerified])
	require.Equal(t, all, after.Counts[share.Ended.String()])
	t.Logf("the producer before: %v; after: %v", before, after)
	s.consumer().succeeds()
	require.NoError(t, server.dismiss())
}

// mapped is how many consumers have mapped the memory.
func mapped(t *testing.T, server *process) int {
	t.Helper()
	v, err := server.vitals()
	require.NoError(t, err)
	return v.Counts[share.Mapped.String()]
}
