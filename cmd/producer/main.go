package main

import "os"

func main() {
	p := newProducer(os.Stdout)
	os.Exit(p.app.Run(os.Args[1:], os.Stderr, p.run))
}
