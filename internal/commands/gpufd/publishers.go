package gpufd

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/internal/sockets"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/weights"
)

// A publisher is one of weights that change every step (package weights), as ls prints it.
type publisher struct {
	Event       string `json:"event"`
	Name        string `json:"name"`
	Device      string `json:"device"`        // the device's UUID
	PID         int32  `json:"pid,omitempty"` // 0 in another PID namespace
	Answers     bool   `json:"answers"`       // else it has none of what follows
	Buckets     int    `json:"buckets,omitempty"`
	BucketBytes uint64 `json:"bucket_bytes,omitempty"`
	Subscribers *int   `json:"subscribers,omitempty"`
	Socket      string `json:"socket"`
}

// publishers asks all that the default directory names and who listens at --socket, side by side. It waits for a second, or --timeout.
func (p *program) publishers(ctx context.Context) (all []publisher) {
	limit := time.Second
	if p.patient {
		limit = p.timeout
	}
	places := map[string]string{}
	if p.socket != sockets.Keeper() {
		places[p.socket] = ""
	}
	there, err := sockets.Offers()
	if err != nil {
		fmt.Fprintf(p.stderr, "%s: the publishers in the default directory are not listed: %s\n", p.command, plain.Text(err.Error()))
	}
	for offer, path := range there {
		if _, _, ok := cutOffer(offer); ok {
			places[path] = offer
		}
	}
	var mu sync.Mutex
	var asked sync.WaitGroup
	for path, offer := range places {
		asked.Go(func() {
			here := publishersAt(ctx, path, offer, limit)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, here...)
		})
	}
	asked.Wait()
	slices.SortFunc(all, func(a, b publisher) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Device, b.Device)) })
	return all
}

// publishersAt asks the process that listens at path for its publishers. If it does not answer, offer tells which one that is, if any.
func publishersAt(ctx context.Context, path, offer string, limit time.Duration) (all []publisher) {
	var pid int32
	offers, err := share.List(ctx, path, &share.ListOptions{Timeout: limit, OnConnected: func(p sock.Peer) { pid = p.PID }})
	if name, device, ok := cutOffer(offer); ok && errors.Is(err, share.ErrTimeout) {
		return []publisher{{Event: "publisher", Name: name, Device: device.String(), PID: pid, Socket: path}}
	}
	for _, l := range offers {
		if name, device, ok := cutOffer(l.Name); ok && device == l.Device && l.Slots > 0 {
			all = append(all, publisher{"publisher", name, device.String(), pid, true, l.Slots, l.Size / uint64(l.Slots), &l.Leases, path})
		}
	}
	return all
}

// cutOffer takes the name of a publisher's offer apart ([weights.OfferName]).
func cutOffer(offer string) (name string, device cu.UUID, ok bool) {
	at := strings.LastIndexByte(offer, '@') // a name may have others
	uuid, err := hex.DecodeString(offer[at+1:])
	if at < 0 || err != nil || len(uuid) != len(device) {
		return "", device, false
	}
	name, device = offer[:at], cu.UUID(uuid)
	return name, device, weights.OfferName(name, device) == offer
}

func (p *program) listPublishers(all []publisher) {
	if p.json {
		for _, x := range all {
			p.object(x)
		}
		return
	}
	if len(all) == 0 {
		return
	}
	w := tabwriter.NewWriter(p.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "PUBLISHER\tDEVICE\tPID\tBUCKETS\tSUBSCRIBERS")
	for _, x := range all {
		pid, rest := "-", "does not answer"
		if x.PID > 0 {
			pid = fmt.Sprint(x.PID)
		}
		if x.Answers {
			rest = fmt.Sprintf("%d x %s\t%d", x.Buckets, cli.Human(x.BucketBytes), *x.Subscribers)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", plain.Text(x.Name), x.Device, pid, rest)
	}
	w.Flush()
}
