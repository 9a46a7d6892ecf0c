package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/vmm"
)

// Want is what [Attach] is to take.
type Want struct {
	Part   int               // that part alone; -1 is all
	Labels map[string]string // that the version has to have
	Access cu.Access         // share.ReadOnly if 0
}

// An Attached is a part of a version that is mapped here. The caller owns it.
type Attached struct {
	*share.Attachment
	Data Data
}

// Attach maps parts of the current version of a name, each on the device that it is on:
// all of one version, also while another is committed. The caller closes what is returned.
// ctx bounds attaching. Who wants one part and nothing else needs no keeper's client:
// [share.Attach] with [OfferName] does.
//
// A part that cannot be mapped as it was declared is reported to the keeper.
//
// Errors: the keeper's [*Error]; those of [share.Attach]; [ErrLabels].
func Attach(ctx context.Context, drv *cu.Driver, c *Client, name string, want Want) ([]*Attached, error) {
	for {
		info, err := c.Stat(ctx, name)
		if err != nil {
			return nil, err
		}
		if info.Version == 0 {
			return nil, &Error{Code: "not-found", Message: fmt.Sprintf("%s has no version yet", name)}
		}
		if err := demand(name, info.Labels, want.Labels); err != nil {
			return nil, err
		}
		if want.Part >= len(info.Parts) {
			return nil, &Error{Code: "not-found", Message: fmt.Sprintf("%s has no part %d: it has %d", name, want.Part, len(info.Parts))}
		}
		if err := good(info, want.Part); err != nil {
			return nil, err
		}
		all, err := attachAll(ctx, drv, c, info, want)
		if !errors.Is(err, errOther) {
			return all, err
		}
	}
}

// good wants parts that the keeper serves.
func good(info Info, part int) error {
	for i, p := range info.Parts {
		if (part < 0 || i == part) && p.State != state.OK {
			return &Error{Code: state.Code(p.State), Message: fmt.Sprintf("part %d of version %d of %s is %s (%s), and not served", i, info.Version, info.Name, p.State, p.Reason)}
		}
	}
	return nil
}

// ErrLabels says that a version has not the labels that were asked for.
var ErrLabels = errors.New("keeper: the version has other labels")

func demand(name string, has, want map[string]string) error {
	for k, v := range want {
		if got, ok := has[k]; !ok || got != v {
			return fmt.Errorf("%w: %s has %s=%q, and %q was asked for", ErrLabels, name, k, got, v)
		}
	}
	return nil
}

// errOther says that a part is of another version than the others.
var errOther = errors.New("keeper: another version was committed meanwhile")

// attachAll attaches to the parts of one version, or to none.
func attachAll(ctx context.Context, drv *cu.Driver, c *Client, info Info, want Want) (all []*Attached, err error) {
	defer func() {
		if err != nil {
			for _, a := range all {
				err = errors.Join(err, a.Close())
			}
			all = nil
		}
	}()
	for i := range info.Parts {
		if want.Part >= 0 && i != want.Part {
			continue
		}
		a, err := attachPart(ctx, drv, c, info, i, want)
		if err != nil {
			return all, err
		}
		all = append(all, a)
		if a.Data.Version != info.Version {
			return all, errOther
		}
	}
	return all, nil
}

func attachPart(ctx context.Context, drv *cu.Driver, c *Client, info Info, i int, want Want) (*Attached, error) {
	devices := drv.Devices()
	if len(devices) == 0 {
		return nil, cu.ErrNoDevice
	}
	access := want.Access
	if access == 0 {
		access = share.ReadOnly
	}
	as := OfferName(info.Name, i, len(info.Parts))
	att, err := share.Attach(ctx, c.socket, as, devices[0], share.WithAnyDevice(), share.WithAccess(access))
	if err != nil {
		if errors.Is(err, vmm.ErrDescriptor) {
			_, reportErr := c.Report(ctx, info.Name, info.Version, i, "quarantined", brief(err))
			err = errors.Join(err, reportErr)
		}
		return nil, fmt.Errorf("attaching to %s: %w", as, err)
	}
	a := &Attached{Attachment: att}
	if err := json.Unmarshal(att.Offer().Data, &a.Data); err != nil {
		return nil, errors.Join(fmt.Errorf("what the keeper says of %s: %w", as, err), att.Close())
	}
	return a, nil
}

// brief is an error as a reason that a keeper takes.
func brief(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return strings.ToValidUTF8(text[:min(len(text), state.MaxReason)], "")
}

// Digest computes the digest of the part's bytes on its device, to be compared with
// Data.Digest.
func (a *Attached) Digest(ctx context.Context) (string, error) {
	primary, err := a.Device().PrimaryContext()
	if err != nil {
		return "", err
	}
	d, err := Digest(ctx, primary, a.Ptr(), a.Size())
	return d, errors.Join(err, primary.Close())
}
