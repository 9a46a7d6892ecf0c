//go:build !cgo

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "calls: built without cgo; build with CGO_ENABLED=1")
	os.Exit(3)
}
