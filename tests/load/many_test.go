package load

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/gpufd/gpufd/tests/internal/programs"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/cu/cutest"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/testenv"
	"github.com/gpufd/gpufd/share"
)

// attachAndHold attaches as often as the task says, says so, stays until it is to halt,
// and then verifies and reports each.
func attachAndHold(do task) error {
	st := testenv.Got(openStage())
	var counts tally
	err := obey(func(ctx context.Context) error {
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

// countAttached is what a many counts, and says when all are.
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
			att, err := share.Attach(ctx, do.Socket, cli.OfferName, st.dev, nil)
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

// manySize is a thousand consumers in 50 processes, that is 20 attachments in
// each; on a GPU, where each process takes half a GiB for its context, 24
// processes with one each, or 64.
func manySize() (processes, each int) {
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
	processes, each := manySize()
	s := programs.NewScene(t)
	server := child(s, actProducer, task{Timeout: programs.Patience})
	before, err := askUsage(server)
	require.NoError(t, err)
	many := map[string]*programs.Process{}
	for i := range processes {
		many[strconv.Itoa(i+1)] = child(s, actMany, task{Count: each, Timeout: programs.Patience})
	}
	begun := time.Now()
	require.NoError(t, complaint(tell(many, orderGo)))
	for _, c := range many {
		_, err := awaitAnswer(c, countAttached)
		require.NoError(t, err)
	}
	all := processes * each
	programs.Eventually(t, func() bool { return mapped(t, server) == all }, "%d of %d consumers have mapped the memory",
		programs.Late(func() any { return mapped(t, server) }), all)
	there, err := askUsage(server)
	require.NoError(t, err)
	require.Zero(t, there.Counts[share.Ended.String()], "all are there at once")
	require.GreaterOrEqual(t, there.fds, before.fds+all, "each is a descriptor")
	t.Logf("%d consumers in %d processes attached within %s; the producer: %v", all, processes, time.Since(begun), there)

	require.NoError(t, complaint(tell(many, orderHalt)))
	for _, c := range many {
		v, err := askUsage(c)
		require.NoError(t, err)
		require.Equal(t, map[string]int{countAttached: each, countHandoffs: each}, v.Counts)
		require.NoError(t, dismiss(c))
	}
	after, complaints := settle(server, before, anything, programs.Patience)
	require.NoError(t, complaint(complaints))
	require.Equal(t, all, after.Counts[countVerified])
	require.Equal(t, all, after.Counts[share.Ended.String()])
	t.Logf("the producer before: %v; after: %v", before, after)
	s.Consumer().Succeeds()
	require.NoError(t, dismiss(server))
}

// mapped is how many consumers have mapped the memory.
func mapped(t *testing.T, server *programs.Process) int {
	t.Helper()
	v, err := askUsage(server)
	require.NoError(t, err)
	return v.Counts[share.Mapped.String()]
}
