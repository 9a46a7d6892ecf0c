package rival

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/gpufd/gpufd/bench/internal/program"
)

// A Command is how a rival is started.
type Command struct {
	Name string
	Argv []string
}

// Commands is a flag that may be given several times: NAME=COMMAND,ARG,….
type Commands []Command

func (c *Commands) String() string { return "" }

// Set adds a command.
func (c *Commands) Set(s string) error {
	name, line, ok := strings.Cut(s, "=")
	argv := strings.Split(line, ",")
	switch {
	case !ok || name == "" || argv[0] == "":
		return errors.New("want NAME=COMMAND,ARG,…")
	case slices.ContainsFunc(*c, func(x Command) bool { return x.Name == name }):
		return fmt.Errorf("there is a %s already", name)
	}
	*c = append(*c, Command{name, argv})
	return nil
}

// limit is how long a rival has to start, or to answer.
const limit = 2 * time.Minute

// A Field is the rivals that are compared, in the order in which they were named; the first is ours.
type Field struct {
	rivals []*Rival
	Infos  []string // a line on each that was started
	Absent []string // what was left out, and why
	stderr io.Writer
}

// StartAll starts the rivals. Those that this machine cannot run are left out; ours has to run.
func StartAll(ctx context.Context, commands Commands, stderr io.Writer) (*Field, error) {
	f := &Field{stderr: stderr}
	for i, c := range commands {
		one, cancel := context.WithTimeout(ctx, limit)
		r, err := Start(one, c.Name, c.Argv...)
		cancel()
		switch {
		case err == nil:
			f.rivals = append(f.rivals, r)
			f.Infos = append(f.Infos, c.Name+": "+r.Info)
		case i == 0:
			return nil, err
		default:
			f.LeaveOut(err)
		}
	}
	return f, nil
}

// LeaveOut notes what is not measured, or not further.
func (f *Field) LeaveOut(why error) {
	f.Absent = append(f.Absent, program.OneLine(why))
	fmt.Fprintln(f.stderr, "left out:", f.Absent[len(f.Absent)-1])
}

// TakeTurns calls do for each rival, beginning with another one in each round. A rival that fails is left out from
// then on; that ours fails is an error.
func (f *Field) TakeTurns(ctx context.Context, round int, do func(*Rival) error) error {
	order := slices.Clone(f.rivals)
	for i := range order {
		r := order[(i+round)%len(order)]
		err := do(r)
		switch {
		case err == nil:
		case ctx.Err() != nil || r == f.rivals[0]:
			return err
		default:
			f.LeaveOut(err)
			f.rivals = slices.DeleteFunc(f.rivals, func(x *Rival) bool { return x == r })
			_ = r.Close() // it is out of use, whatever becomes of it
		}
	}
	return nil
}

// Ask asks a rival, which has a limited time.
func Ask(ctx context.Context, r *Rival, question string) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	a, err := r.Ask(ctx, "%s", question)
	if err != nil {
		err = fmt.Errorf("%s: %w", question, err)
	}
	return a, err
}

// Text says which rivals there are, and what was left out, as Markdown.
func (f *Field) Text() string {
	text := "- " + strings.Join(f.Infos, "\n- ") + "\n"
	if len(f.Absent) > 0 {
		text += "\nNot measured, or not further:\n\n- " + strings.Join(f.Absent, "\n- ") + "\n"
	}
	return text
}

// Close ends the rivals.
func (f *Field) Close() (err error) {
	for _, r := range f.rivals {
		err = errors.Join(err, r.Close())
	}
	return err
}
