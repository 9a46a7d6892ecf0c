// Package cgroup tells how much memory this process may take: the limit of its control group
// (cgroups(7)), as containers and services have it.
package cgroup

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// MemoryLimit returns the least limit of the control groups that this process is in, and false
// where none can be seen.
func MemoryLimit() (bytes uint64, ok bool) {
	return limit("/proc/self/cgroup", "/sys/fs/cgroup")
}

// limit is MemoryLimit with the places of the files.
func limit(groups, root string) (least uint64, ok bool) {
	text, err := os.ReadFile(groups)
	if err != nil {
		return 0, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		_, rest, _ := strings.Cut(lines.Text(), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		top, file := root, "memory.max"
		switch {
		case strings.Contains(","+controllers+",", ",memory,"): // version 1
			top, file = filepath.Join(root, "memory"), "memory.limit_in_bytes"
		case controllers != "":
			continue
		}
		for dir := filepath.Clean("/" + path); ; dir = filepath.Dir(dir) {
			if n, found := read(filepath.Join(top, dir, file)); found && (!ok || n < least) {
				least, ok = n, true
			}
			if dir == "/" {
				break
			}
		}
	}
	return least, ok
}

// none is what version 1 says instead of no limit, or less.
const none = 1 << 60

func read(path string) (uint64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64) // else "max"
	return n, err == nil && n > 0 && n < none
}
