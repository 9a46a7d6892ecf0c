package main

import "os"

func main() {
	l := newLauncher(os.Stdout)
	os.Exit(l.app.Run(os.Args[1:], os.Stderr, l.run))
}
