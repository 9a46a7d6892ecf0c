package gpufd

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpufd/gpufd/keeper/api"
)

func (p *program) watchCommand() *cobra.Command {
	return &cobra.Command{
		Use: "watch [NAME]", Short: "Print what happens to a name, or to all names, until a signal comes", Args: p.args(0, 1, "one name at most"),
		RunE: func(c *cobra.Command, args []string) error {
			k, err := p.connect(c.Context())
			if err != nil {
				return err
			}
			err = k.Watch(c.Context(), strings.Join(args, ""), func(e api.Event) bool {
				if p.json {
					p.object(e)
				}
				p.say("%s", event(e))
				return true
			})
			return errors.Join(interrupted(c.Context(), err), k.Close())
		},
	}
}

// event describes an event for people.
func event(e api.Event) string {
	text := e.Time.Format(time.RFC3339) + " " + e.Name + " " + e.Kind
	if e.Version > 0 {
		text += fmt.Sprintf(" version %d", e.Version)
	}
	if e.Text != "" {
		text += ": " + e.Text
	}
	return text
}
