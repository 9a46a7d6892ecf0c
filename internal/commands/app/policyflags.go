package app

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gpufd/gpufd/sock"
)

// PolicyFlags are --allow-uid and --allow-gid: the users admitted beside this one.
type PolicyFlags struct {
	UIDs, GIDs []uint32
}

// AllowFlags adds the flags to the command, with their texts for its help.
func (a *App) AllowFlags(p *PolicyFlags, uids, gids string) {
	AllowUID(a.Flags, &p.UIDs, uids)
	a.Flags.Var(idList{&p.GIDs, groupID}, "allow-gid", gids)
}

// AllowUID adds --allow-uid, a flag of users by number or name, separated by commas, that may be
// given several times.
func AllowUID(flags *pflag.FlagSet, ids *[]uint32, usage string) {
	flags.Var(idList{ids, userID}, "allow-uid", usage)
}

// Policy returns the policy that the flags describe.
func (p *PolicyFlags) Policy() sock.Policy { return sock.Policy{UIDs: p.UIDs, GIDs: p.GIDs} }

// The modes of a socket to which this user, one group or everybody may connect.
const (
	modeUser  = 0o600
	modeGroup = 0o660
	modeAll   = 0o666
)

// Mode returns the mode that lets all admitted users connect to a socket; the policy
// refuses the others. If one group is admitted, see Open, too.
func (p *PolicyFlags) Mode() os.FileMode {
	switch {
	case len(p.UIDs) > 0 || len(p.GIDs) > 1:
		return modeAll
	case len(p.GIDs) == 1:
		return modeGroup
	}
	return modeUser
}

// Open gives the socket at path, which has that mode, to the one group that is admitted, if
// so (chown(2)). If this process may not do that, Open lets everybody connect.
func (p *PolicyFlags) Open(path string) error {
	if p.Mode() != modeGroup || os.Chown(path, -1, int(p.GIDs[0])) == nil {
		return nil
	}
	return os.Chmod(path, modeAll)
}

// Shut returns why admitted users cannot reach the socket at path, because only the owner
// may search its directory. It returns "" if they can, or if there are none.
func (p *PolicyFlags) Shut(path string) string {
	if p.Mode() == modeUser {
		return ""
	}
	dir := filepath.Dir(path)
	st, err := os.Stat(dir)
	if err != nil || st.Mode()&0o011 != 0 {
		return ""
	}
	return fmt.Sprintf("nobody else can search %s (mode %04o), so users of --allow-uid and --allow-gid cannot connect: chmod 0711 %s", dir, st.Mode().Perm(), dir)
}

// An idList is a flag of ids or names, separated by commas, that may be given
// several times.
type idList struct {
	ids    *[]uint32
	lookup func(name string) (id string, err error)
}

func userID(name string) (string, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return "", err
	}
	return u.Uid, nil
}

func groupID(name string) (string, error) {
	g, err := user.LookupGroup(name)
	if err != nil {
		return "", err
	}
	return g.Gid, nil
}

// Set adds the ids in text, or none of them if one is wrong.
func (l idList) Set(text string) error {
	var more []uint32
	for word := range strings.SplitSeq(text, ",") {
		id, err := l.id(word)
		if err != nil {
			return err
		}
		more = append(more, id)
	}
	*l.ids = append(*l.ids, more...)
	return nil
}

// id returns the number in word, or that of the name. The largest number of 32 bits
// means no id, and is refused.
func (l idList) id(word string) (uint32, error) {
	if word == "" {
		return 0, errors.New("want numbers or names, separated by commas")
	}
	if strings.Trim(word, "0123456789") != "" {
		number, err := l.lookup(word)
		if err != nil {
			return 0, err
		}
		word = number
	}
	id, err := strconv.ParseUint(word, 10, 32)
	if err != nil || id == math.MaxUint32 {
		return 0, errors.New("want numbers below 2^32-1")
	}
	return uint32(id), nil
}

// Type names the type for package pflag.
func (l idList) Type() string { return "ids" }

// String prints the ids.
func (l idList) String() string {
	words := make([]string, len(*l.ids))
	for i, id := range *l.ids {
		words[i] = strconv.FormatUint(uint64(id), 10)
	}
	return strings.Join(words, ",")
}
