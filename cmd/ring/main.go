package main

import "os"

func main() {
	if len(os.Args) > 1 && os.Args[1] == memberArg {
		os.Exit(runMember(os.Args[2:]))
	}
	r := newRing(os.Stdout)
	os.Exit(r.app.Run(os.Args[1:], os.Stderr, r.run))
}
