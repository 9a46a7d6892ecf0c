package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// programs are the commands, in the order of the page.
var programs = []string{"producer", "consumer", "launch", "ring", "gpufd"}

// A command is a command with its own help.
type command struct {
	words []string // the program and its subcommands
	help  string
}

func (c command) name() string { return strings.Join(c.words, " ") }

// allHelp builds the programs of the module in root, and asks each for its help.
func allHelp(root string) ([]command, error) {
	dir, err := os.MkdirTemp("", "gpufd-docs-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	build := exec.Command(goCommand(), "build", "-o", dir+"/", "./cmd/...")
	build.Dir = root
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	var all []command
	for _, program := range programs {
		some, err := helpOf(dir, program)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func goCommand() string {
	if name := os.Getenv("GO"); name != "" {
		return name
	}
	return "go"
}

// helpOf returns the help of a command and of all commands below it.
func helpOf(dir string, words ...string) ([]command, error) {
	cmd := exec.Command(filepath.Join(dir, words[0]), append(words[1:len(words):len(words)], "--help")...)
	cmd.Env = []string{} // the help shows defaults, which the environment changes
	out, err := cmd.CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%s --help: %w\n%s", strings.Join(words, " "), err, out)
	}
	all := []command{{words, anybodys(string(out))}}
	for _, name := range below(string(out)) {
		some, err := helpOf(dir, append(words[:len(words):len(words)], name)...)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// sockets matches the directory of this user's sockets.
var sockets = regexp.MustCompile(`/tmp/gpufd-\d+/`)

// globals matches what cobra prints below each command of gpufd, and the page shows once.
var globals = regexp.MustCompile(`(?s)\nGlobal Flags:\n.*`)

// anybodys returns a help without what depends on the user.
func anybodys(help string) string {
	help = sockets.ReplaceAllString(help, "/tmp/gpufd-UID/")
	help = globals.ReplaceAllString(help, "")
	help = strings.ReplaceAll(help, "\t", "    ")
	return strings.TrimSpace(help)
}

// shared begins the common end of every program's help, except gpufd's.
const shared = "\n\nExit codes: "

// separate removes from all helps their common end, and returns it.
func separate(all []command) (ending string, err error) {
	for i, c := range all {
		own, rest, found := strings.Cut(c.help, shared)
		if !found || c.words[0] == "gpufd" {
			continue
		}
		if ending != "" && rest != ending {
			return "", fmt.Errorf("the help of %s ends with other words than that of %s", c.name(), all[0].name())
		}
		all[i].help, ending = own, rest
	}
	if ending == "" {
		return "", fmt.Errorf("no help has %q", strings.TrimSpace(shared))
	}
	return strings.TrimSpace(shared) + " " + ending, nil
}

// listed matches a line of cobra's list of commands.
var listed = regexp.MustCompile(`(?m)^  ([a-z]+) +\S`)

// below returns the commands that a help lists, except those that cobra adds itself.
func below(help string) (names []string) {
	_, list, _ := strings.Cut(help, "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	for _, m := range listed.FindAllStringSubmatch(list, -1) {
		if m[1] != "completion" && m[1] != "help" {
			names = append(names, m[1])
		}
	}
	return names
}
