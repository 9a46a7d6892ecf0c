package ring

import (
	"fmt"

	"github.com/gpufd/gpufd/internal/cli"
	"github.com/gpufd/gpufd/internal/commands/app"
)

// String names the message for people.
func (m message) String() string {
	switch m.Kind {
	case begin:
		return "mapping the chunks"
	case fillStep:
		return fmt.Sprintf("step %d", m.Step)
	case checkChunk:
		return "checking its chunk"
	}
	return string(m.Kind)
}

// busy says how far an order is.
func (p *parent) busy(order message, done int) string {
	what := order.String()
	if order.Kind == fillStep {
		what = fmt.Sprintf("%d of %s done; the next", order.Step, cli.Count(p.steps, "step"))
	}
	return fmt.Sprintf("%s: %d of %s done", what, done, cli.Count(len(p.members), "process"))
}

func (p *parent) sayFilled(m *member, order message) {
	if !p.verbose || order.Kind != fillStep {
		return
	}
	chunk := chunkOf(m.id, order.Step, len(p.members))
	p.app.Say("step", app.Fields{"step": order.Step, "process": m.id, "chunk": chunk}, "Step %d: process %d has filled chunk %d", order.Step, m.id, chunk)
}

// sayEnd prints a member's last word.
func (p *parent) sayEnd(m *member) {
	fields := app.Fields{"process": m.id, "exit": m.last.Code}
	if m.last.Wrong != nil {
		fields["offset"], fields["want"], fields["got"], fields["wrong"] = m.last.Wrong.Offset, m.last.Wrong.Want, m.last.Wrong.Got, m.last.Wrong.Bytes
	}
	if m.last.Error != "" {
		fields["error"] = m.last.Error
		p.app.Say("ended", fields, "Process %d failed: %s (exit code %d)", m.id, m.last.Error, m.last.Code)
		return
	}
	p.app.Say("ended", fields, "Process %d has found its chunk right", m.id)
}

// failed returns the member's last word as an error.
func (m *member) failed() error {
	return cli.Codef(m.last.Code, "process %d: %s", m.id, m.last.Error)
}

// verdict returns the failure of the members that have ended, or nil.
func (p *parent) verdict() (worst error) {
	n := 0
	for _, m := range p.members {
		if m.last == nil || m.last.Code == cli.ExitOK {
			continue
		}
		if n++; worst == nil || m.last.Code < cli.ExitCode(worst) {
			worst = m.failed()
		}
	}
	if n > 1 {
		return fmt.Errorf("%d processes failed, among them %w", n, worst)
	}
	return worst
}
