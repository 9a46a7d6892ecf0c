package main

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// commands makes docs/commands.md of the module in root.
func commands(root string) ([]byte, error) {
	all, err := allHelp(root)
	if err != nil {
		return nil, err
	}
	ending, err := separate(all)
	if err != nil {
		return nil, err
	}
	codes, codesErr := exitCodes(root)
	env, envErr := environment(root)
	common, commonErr := recordsOf(filepath.Join(root, "internal/cli"))
	if err := errors.Join(codesErr, envErr, commonErr); err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString(preface)
	for _, c := range all {
		if len(c.words) <= 2 {
			fmt.Fprintf(&b, "[%s](#%s) ·\n", c.name(), strings.Join(c.words, "-"))
		}
	}
	fmt.Fprintf(&b, "[exit codes](#exit-codes) · [environment](#environment) · [JSON](#json)\n")
	for _, c := range all {
		fmt.Fprintf(&b, "\n## %s\n\n```text\n%s\n```\n", c.name(), c.help)
		said, err := recordsOfCommand(root, c)
		if err != nil {
			return nil, err
		}
		if len(said) > 0 {
			fmt.Fprintf(&b, "\nWith `--json`:\n\n%s", said.list())
		}
	}
	fmt.Fprintf(&b, "\n## Exit codes\n\n%s\nThe help of producer, consumer, launch and ring ends with this:\n\n```text\n%s\n```\n\n## Environment\n\n%s\n## JSON\n\n%s\n%s", codes, ending, env, aboutJSON, common.list())
	return []byte(b.String()), nil
}

const preface = `# Commands

This page is made by ` + "`make docs`" + ` from the help and the sources of the programs; do not edit it.
Each command has its help here. Below that are the records that it prints with ` + "`--json`" + `: the event, then the members.

A shell completes flags after ` + "`source <(producer --completion bash)`" + ` (or zsh), and likewise for consumer, launch and
ring. For fish it is ` + "`producer --completion fish | source`" + `. For gpufd it is ` + "`source <(gpufd completion bash)`" + `, which
also completes the names that the keeper has.
The keeper starts ` + "`gpufd fd-store SOCKET.store`" + ` by itself; it has no help, and nobody else needs it.

`

const aboutJSON = `With ` + "`--json`" + ` a command prints one object a line. Each has the member ` + "`event`" + `, unless its list says otherwise. A
member that does not apply is left out.

The last line is the ` + "`result`" + `; ` + "`gpufd ls`, `stat`, `watch` and `version`" + ` print it only when they fail. Help, the version and
completion scripts are text even with ` + "`--json`" + `. A program that is killed prints no result, nor does gpufd when a second
signal ends it. The result has these members, and those of the command's own list:

- ` + "`ok`" + `: true or false;
- ` + "`exit`" + `: the [exit code](#exit-codes);
- ` + "`error`" + `: only when the command failed. Producer, consumer, launch and ring give a text. gpufd gives an object with
  ` + "`message`" + ` and, where the keeper gave them, ` + "`code`" + ` ([the list](wire.md#errors)) and ` + "`holders`" + `, as in
  [gpufd drain](#gpufd-drain);
- ` + "`steps_us`" + `: the microseconds of each step, of producer, consumer, launch and ring.

Producer, consumer, launch and ring also print the records below. ` + "`dropped`" + ` has the member ` + "`lines`" + `: how many were
lost because nobody read the output in time.
`

// list shows records, sorted by event. The members of a list's elements stand below it.
func (r records) list() string {
	var b strings.Builder
	for _, event := range slices.Sorted(maps.Keys(r)) {
		fmt.Fprintf(&b, "- **%s**", event)
		var below strings.Builder
		separator := ": "
		for _, member := range r[event] {
			name, inner, nested := strings.Cut(member, " [")
			of := "each of "
			if !nested {
				name, inner, nested = strings.Cut(member, " {")
				of = "in "
			}
			if !strings.Contains(name, " of ") { // else it is in another member
				b.WriteString(separator + name)
				separator = ", "
			}
			if nested {
				fmt.Fprintf(&below, "  - %s%s: %s\n", of, name, inner[:len(inner)-1])
			}
		}
		b.WriteString("\n" + below.String())
	}
	return b.String()
}

// A printer says where a command of gpufd makes its records.
type printer struct {
	file string // of cmd/gpufd; its records belong only to this command
	dir  string // the package of a struct that it prints, one per line

	typ   string
	event string // the event of the struct's lines, or nothing

	member string // of the event, which holds the struct, or a list of them with [ behind it
}

// merged leaves out a member that is there once more with what it holds.
func merged(members []string) (all []string) {
	for i, m := range members {
		if i+1 < len(members) && (strings.HasPrefix(members[i+1], m+" [") || strings.HasPrefix(members[i+1], m+" {")) {
			continue
		}
		all = append(all, m)
	}
	return all
}

// printers has a row for each command of gpufd that prints JSON.
var printers = map[string][]printer{
	"keeper":        {{file: "keep.go"}},
	"put":           {{file: "put.go"}},
	"get":           {{file: "get.go"}, {file: "hold.go"}, {file: "write.go"}},
	"ls":            {{dir: "keeper/internal/state", typ: "Info"}},
	"stat":          {{dir: "keeper/internal/state", typ: "Info"}},
	"rm":            {{file: "look.go"}},
	"drain":         {{file: "drain.go"}, {dir: "keeper/internal/state", typ: "Holder", event: "result", member: "holders ["}},
	"quarantine":    {{file: "quarantine.go"}},
	"watch":         {{dir: "keeper", typ: "Event", event: "committed, draining, removed, damaged, quarantined, served"}},
	"channel read":  {{file: "channelread.go"}},
	"channel write": {{file: "channelwrite.go"}},
	"doctor": {{file: "doctor.go"}, {dir: "internal/doctor", typ: "Row"},
		{dir: "internal/doctor", typ: "Meaning", event: "result", member: "meaning {"},
		{dir: "internal/hints", typ: "Cause", event: "result", member: "causes of meaning ["}},
	"version": {{file: "look.go"}},
	"channel": nil,
	"":        nil,
}

// lines says which command makes which records of look.go.
var lines = map[string]string{"rm": "result", "version": noEvent}

// noEvent stands for the event of a record that has none.
const noEvent = "(no event)"

// recordsOfCommand returns the records of one command.
func recordsOfCommand(root string, c command) (records, error) {
	if c.words[0] != "gpufd" {
		return recordsOf(filepath.Join(root, "cmd", c.words[0]))
	}
	name := strings.Join(c.words[1:], " ")
	from, known := printers[name]
	if !known {
		return nil, fmt.Errorf("gpufd %s: internal/docs does not know where its JSON is made (printers)", name)
	}
	all := records{}
	for _, p := range from {
		some, err := p.records(root)
		if err != nil {
			return nil, err
		}
		for event, members := range some {
			if want := lines[name]; want == "" || want == event {
				all.add(event, members...)
				all[event] = merged(all[event])
			}
		}
	}
	return all, nil
}

func (p printer) records(root string) (records, error) {
	if p.file != "" {
		return recordsOf(filepath.Join(root, "cmd/gpufd"), p.file)
	}
	members, err := membersOf(filepath.Join(root, p.dir), p.typ)
	event := p.event
	if event == "" {
		event = noEvent
	}
	members = slices.DeleteFunc(members, func(m string) bool { return m == "event" })
	switch {
	case strings.HasSuffix(p.member, " ["):
		members = []string{p.member + strings.Join(members, ", ") + "]"}
	case strings.HasSuffix(p.member, " {"):
		members = []string{p.member + strings.Join(members, ", ") + "}"}
	}
	return records{event: members}, err
}
