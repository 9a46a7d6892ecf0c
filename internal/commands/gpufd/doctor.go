package gpufd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
	"github.com/gpufd/gpufd/internal/doctor"
	"github.com/gpufd/gpufd/internal/sockets"
)

// doctorFlags are the flags of gpufd doctor.
type doctorFlags struct {
	with, offer, as, attach string
	uids                    []uint32
	given                   func(flag string) bool
}

func (p *program) doctorCommand() *cobra.Command {
	var f doctorFlags
	cmd := &cobra.Command{
		Use:   "doctor [CODE|TEXT]",
		Short: "Find out why sharing fails here, with another process, or with an error",
		Long: `doctor tries whether this machine, this container and this user can share GPU memory: it
starts two processes, which share 2 MiB of each device in every possible way.

  gpufd doctor                        # what works here
  gpufd doctor --with 4711            # can this process share with that one?
  gpufd doctor --offer /run/x/d.sock  # run this in one container, and in the other:
  gpufd doctor --with /run/x/d.sock   #   the first shares 2 MiB with this one
  gpufd doctor 201                    # explains an error: a code, a name, a line of a log, or the
                                      #   id of a row

Each row says OK, WARN, FAIL or UNKNOWN, what was seen, why it matters and what to do. Its id
has a section in docs/doctor.md. Exit codes: 0 no row is FAIL; 1 one about the other side
is, or nothing is known of CODE or TEXT; 3 one about this machine is; 4 a check did not
end within --timeout.`,
		Args: p.args(0, -1, "a code or a text"),
		RunE: func(c *cobra.Command, args []string) error {
			f.given = c.Flags().Changed
			if err := f.check(args); err != nil {
				return err
			}
			return p.doctor(c.Context(), f, strings.Join(args, " "))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.with, "with", "", "the pid of a process, or a `socket`, to share with")
	flags.StringVar(&f.offer, "offer", "", "listen at a `socket` for gpufd doctor --with, until a signal comes")
	flags.StringVar(&f.as, "as", "", "with --with: the `process` to compare with, instead of this one")
	flags.StringVar(&f.attach, "attach", "", "with --with SOCKET: attach to the `offer` of this name as a consumer")
	app.AllowUID(flags, &f.uids, "with --with and --offer: trust these `users`, too")
	app.DriverFlag(cmd.Flags(), &p.driver)
	return cmd
}

// check refuses flags and arguments that do not go together. It also refuses empty ones: they
// come from variables of scripts that are not set.
func (f *doctorFlags) check(args []string) error {
	with, offer := f.given("with"), f.given("offer")
	text := strings.TrimSpace(strings.Join(args, ""))
	switch {
	case with && offer, (with || offer) && len(args) > 0:
		return cli.Usagef("want only one of --with, --offer, and a code or text")
	case with && f.with == "", offer && f.offer == "", len(args) > 0 && text == "":
		return cli.Usagef("want a process or socket, or a code or text, and got an empty one")
	case (f.given("as") || f.given("attach")) && !with:
		return cli.Usagef("--as and --attach want --with")
	case f.given("allow-uid") && !with && !offer:
		return cli.Usagef("--allow-uid wants --with or --offer")
	case f.given("as") && !doctor.IsProcess(f.as):
		return cli.Usagef("--as %q: want the number of a process", f.as)
	case f.given("attach") && (f.attach == "" || doctor.IsProcess(f.with)):
		return cli.Usagef("--attach wants the name of an offer, and --with a socket")
	}
	return nil
}

// doctor does what the flags and arguments say.
func (p *program) doctor(ctx context.Context, f doctorFlags, text string) error {
	if text != "" {
		return p.meaning(text)
	}
	c := doctor.Config{
		Child: p.doctorChild, Open: p.open, Driver: p.driver, Socket: sockets.Keeper(), Named: os.Getenv(socketEnv), Timeout: p.timeout,
		As: f.as, UIDs: f.uids, Attach: f.attach, Report: p.row,
	}
	var rows []doctor.Row
	switch {
	case f.offer != "":
		return p.doctorOffer(ctx, f.offer, c)
	case f.with != "":
		rows = doctor.With(ctx, c, f.with)
	default:
		rows = doctor.Run(ctx, c)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return p.diagnosis(rows)
}

// doctorChild starts this program as a process of doctor.
func (p *program) doctorChild() *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", doctorChild, p.driver)
	cmd.Stderr = os.Stderr
	return cmd
}

// row prints a row.
func (p *program) row(r doctor.Row) {
	if p.json {
		p.object(r)
		return
	}
	about := r.ID
	if r.Device != "" {
		about += " " + r.Device
	}
	p.say("%-8s%s: %s", r.Status, about, r.Seen)
	if r.Cause != "" {
		p.say("        why: %s (%s)", r.Why, r.Cause)
		p.say("        do:  %s", r.Do)
	}
}

// diagnosis returns the error of the worst rows, or nil.
func (p *program) diagnosis(rows []doctor.Row) error {
	count := map[doctor.Status]int{}
	var failed []string
	for _, r := range rows {
		count[r.Status]++
		if r.Status == doctor.Fail {
			failed = append(failed, r.ID)
		}
	}
	p.result = app.Fields{"rows": len(rows), "warn": count[doctor.Warn], "fail": count[doctor.Fail], "unknown": count[doctor.Unknown]}
	p.say("%d OK, %d WARN, %d FAIL, %d UNKNOWN; docs/doctor.md has a section for each", count[doctor.OK], count[doctor.Warn], count[doctor.Fail], count[doctor.Unknown])
	if code := doctor.ExitCode(rows); code != cli.ExitOK {
		return cli.Codef(code, "%d of %d checks failed: %s", len(failed), len(rows), strings.Join(failed, ", "))
	}
	return nil
}

// meaning prints what a code or a text means.
func (p *program) meaning(text string) error {
	m := doctor.Explain(text)
	if !m.Known() {
		return cli.Codef(cli.ExitFailed, "%.200q is not known as an error of sharing memory: give a number, a name such as CUDA_ERROR_INVALID_VALUE, "+
			"a line of a log or a row's id; gpufd doctor alone tries what works here", text)
	}
	p.result = app.Fields{"meaning": m}
	if m.Result != "" {
		p.say("%s: %s", strings.TrimSpace(m.Call+" "+m.Result), m.Words)
	}
	if m.Other != "" {
		p.say("%s", m.Other)
	}
	for _, c := range m.Causes {
		p.say("%s: %s", c.ID, c.Title)
		p.say("        why: %s", c.Why)
		p.say("        do:  %s", c.Do)
		if c.Untried != "" {
			p.say("        not tried: %s", c.Untried)
		}
	}
	if len(m.Causes) == 0 {
		p.say("This is not about sharing memory, as far as doctor knows.")
	}
	for _, h := range m.Hints {
		p.say("hint: %s", h)
	}
	return nil
}

// doctorOffer serves other doctors.
func (p *program) doctorOffer(ctx context.Context, path string, c doctor.Config) error {
	drv, err := p.open()
	if err != nil {
		return err
	}
	err = doctor.Offer(ctx, drv, path, c, func() {
		if p.json {
			p.object(app.Fields{"event": "serving", "socket": path, "pid": os.Getpid()})
		}
		p.say("Offering 2 MiB at %s: gpufd doctor --with %s", path, path)
	})
	if err != nil {
		return fmt.Errorf("offering memory to other doctors: %w", err)
	}
	return nil
}
