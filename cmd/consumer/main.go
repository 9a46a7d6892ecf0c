package main

import "os"

func main() {
	c := newConsumer(os.Stdout)
	os.Exit(c.app.Run(os.Args[1:], os.Stderr, c.run))
}
