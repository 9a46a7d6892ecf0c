package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/gpufd/gpufd/cu"
	"github.com/gpufd/gpufd/internal/plain"
	"github.com/gpufd/gpufd/keeper/api"
	"github.com/gpufd/gpufd/keeper/internal/protocol"
	"github.com/gpufd/gpufd/keeper/internal/state"
	"github.com/gpufd/gpufd/share"
	"github.com/gpufd/gpufd/sock"
	"github.com/gpufd/gpufd/vmm"
)

// Want says what [Attach] takes.
type Want struct {
	Part   *int              // that part alone, such as new(1); nil is all
	Labels map[string]string // that the version has to have
	Access cu.Access         // cu.ReadOnly if 0
	Peers  sock.Policy       // users whose keeper it may be, beside this user
}

// takes reports whether the part is wanted.
func (w Want) takes(part int) bool { return w.Part == nil || *w.Part == part }

// An Attached is a part of a version that is mapped here. The caller owns it.
type Attached struct {
	*share.Attachment
	Data api.Data
}

// Attach maps parts of the current version of a name, each on its own device. All parts are of
// one version, also if another one is committed meanwhile. The caller closes what is returned.
// ctx bounds attaching. To attach to one part you need no Client: [share.Attach] with
// [OfferName] does it.
//
// If a part cannot be mapped as its writer declared it, Attach reports that to the
// keeper.
//
// Errors: the keeper's [*api.Error]; those of [share.Attach]; [ErrLabels].
func Attach(ctx context.Context, drv *cu.Driver, c *Client, name string, want Want) ([]*Attached, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	for {
		info, err := c.Stat(ctx, name)
		if err != nil {
			return nil, err
		}
		if info.Version == 0 {
			return nil, &api.Error{Code: "not-found", Message: fmt.Sprintf("%s has no version yet", name)}
		}
		if err := demand(name, info.Labels, want.Labels); err != nil {
			return nil, err
		}
		if p := want.Part; p != nil && (*p < 0 || *p >= len(info.Parts)) {
			return nil, &api.Error{Code: "not-found", Message: fmt.Sprintf("%s has no part %d: it has %d, from 0", name, *p, len(info.Parts))}
		}
		if err := good(info, want); err != nil {
			return nil, err
		}
		all, err := attachAll(ctx, drv, c, info, want)
		if !errors.Is(err, errOther) {
			return all, err
		}
	}
}

// good returns an error if the keeper does not serve a wanted part.
func good(info api.Info, want Want) error {
	for i, p := range info.Parts {
		if want.takes(i) && p.State != state.OK {
			no := &api.Error{Code: state.Code(p.State), Message: fmt.Sprintf("part %d of version %d of %s is %s (%s), and not served", i, info.Version, info.Name, p.State, p.Reason)}
			if p.Writer != nil {
				no.Message += fmt.Sprintf("; %s wrote it", p.Writer.Who)
				no.Holders = []api.Holder{*p.Writer}
			}
			return no
		}
	}
	return nil
}

// ErrLabels says that a version does not have the labels that were asked for.
var ErrLabels = errors.New("keeper: the version has other labels")

func demand(name string, has, want map[string]string) error {
	for k, v := range want {
		got, ok := has[k]
		if !ok {
			return fmt.Errorf("%w: %s has no label %s, and %s=%q was asked for", ErrLabels, name, k, k, v)
		}
		if got != v {
			return fmt.Errorf("%w: %s has %s=%q, and %q was asked for", ErrLabels, name, k, got, v)
		}
	}
	return nil
}

// errOther says that a part is of another version than the others.
var errOther = errors.New("keeper: another version was committed meanwhile")

// attachAll attaches to the parts of one version, or to none.
func attachAll(ctx context.Context, drv *cu.Driver, c *Client, info api.Info, want Want) (all []*Attached, err error) {
	defer func() {
		if err != nil {
			for _, a := range all {
				err = errors.Join(err, a.Close())
			}
			all = nil
		}
	}()
	for i := range info.Parts {
		if !want.takes(i) {
			continue
		}
		a, err := attachPart(ctx, drv, c, info, i, want)
		if errors.Is(err, share.ErrRefused) {
			if now, statErr := c.Stat(ctx, info.Name); statErr == nil && now.Version != info.Version && now.Version != 0 {
				return all, errOther // the new version has other parts
			}
		}
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

func attachPart(ctx context.Context, drv *cu.Driver, c *Client, info api.Info, i int, want Want) (*Attached, error) {
	var devices []*cu.Device
	if drv != nil {
		devices = drv.Devices()
	}
	if len(devices) == 0 {
		return nil, fmt.Errorf("keeper: attaching to %s: %w", info.Name, cu.ErrNoDevice)
	}
	access := want.Access
	if access == 0 {
		access = cu.ReadOnly
	}
	as := OfferName(info.Name, i, len(info.Parts))
	att, err := share.Attach(ctx, c.socket, as, devices[0], &share.AttachOptions{AnyDevice: true, Access: access, Policy: want.policy(c.socket)})
	if err != nil {
		if errors.Is(err, vmm.ErrDescriptor) {
			_, reportErr := c.Report(ctx, info.Name, info.Version, i, "quarantined", brief(err))
			err = errors.Join(err, reportErr)
		}
		if errors.Is(err, share.ErrRefused) {
			err = c.whyRefused(ctx, info.Name, i, access, err)
		}
		return nil, fmt.Errorf("attaching to %s: %w", as, err)
	}
	return newAttached(att)
}

// newAttached reads what the keeper says of a part. It takes the attachment over.
func newAttached(att *share.Attachment) (*Attached, error) {
	a := &Attached{Attachment: att}
	if err := json.Unmarshal(att.Offer().Data, &a.Data); err != nil {
		return nil, errors.Join(fmt.Errorf("what the keeper says of %s: %w", att.Offer().Name, err), att.Close())
	}
	return a, nil
}

// Reattach is [share.Attachment.Reattach]: what it returns says in Data which version was mapped. A keeper keeps the
// version of a reader that has detached ([share.Attachment.Detach]), also after a newer one was committed.
func (a *Attached) Reattach(ctx context.Context, want share.Which) (*Attached, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return nil, err
	}
	if a == nil {
		return nil, share.ErrClosed
	}
	att, err := a.Attachment.Reattach(ctx, want)
	if err != nil {
		return nil, fmt.Errorf("reattaching to %s: %w", a.Offer().Name, err)
	}
	return newAttached(att)
}

// whyRefused returns the keeper's reason to refuse a reader, which is only told that it is
// refused. It returns err if there is no such reason now.
func (c *Client) whyRefused(ctx context.Context, name string, part int, access cu.Access, err error) error {
	var no *api.Error
	_, why := c.conn().Query(ctx, protocol.Request{Op: protocol.OpLease, Name: name, Part: part, Access: access.String()})
	if errors.As(why, &no) && no.Code != state.BadRequest { // BadRequest: this keeper does not know the operation
		return errors.Join(no, err)
	}
	return err
}

// brief turns an error into a reason that a keeper accepts.
func brief(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return strings.ToValidUTF8(text[:min(len(text), state.MaxReason)], "")
}

// Digest computes the digest of the part's bytes on its device. Compare it with Data.Digest.
func (a *Attached) Digest(ctx context.Context) (string, error) {
	if err := plain.ContextErr(ctx); err != nil {
		return "", err
	}
	if a == nil || a.Device() == nil {
		return "", share.ErrClosed
	}
	primary, err := a.Device().PrimaryContext()
	if err != nil {
		return "", err
	}
	d, err := Digest(ctx, primary, a.Ptr(), a.Size())
	return d, errors.Join(err, primary.Close())
}
