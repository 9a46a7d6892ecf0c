package compute

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpufd/gpufd/tests/internal/programs"
)

func TestMain(m *testing.M) { programs.Main(m, nil) }

var args = programs.Args

// TestVersionAndHelp: each program says which one it is, and has these flags.
func TestVersionAndHelp(t *testing.T) {
	for name, flags := range map[string]string{
		"producer": "device size chunk access consumers salt socket allow-uid allow-gid connections-per-peer",
		"consumer": "device access expect-salt socket allow-uid allow-gid",
		"launch":   "device ptx module builtin kernel grid block shared repeat bytes list",
		"ring":     "procs steps size place salt compat module v",
	} {
		t.Run(name, func(t *testing.T) {
			programs.Parallel(t)
			version := programs.Start(t, name, programs.ProgramPath(t, name), nil, "-version")
			version.Succeeds()
			require.Regexp(t, `^`+name+` \S+ linux/(amd64|arm64)$`, strings.Join(version.Out.All(), "\n"))
			help := programs.Start(t, name, programs.ProgramPath(t, name), nil, "-h")
			help.Succeeds()
			for f := range strings.FieldsSeq("driver json timeout version " + flags) {
				require.NotEmpty(t, programs.Find(help, "      --"+f), help.Dump())
			}
			require.Contains(t, help.Out.String(), "Exit codes: 0")
		})
	}
}
