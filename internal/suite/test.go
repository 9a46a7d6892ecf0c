package main

// A test is one test function of a package.
type test struct {
	pkg  string // directory in the module
	name string
}

// String names the test with its package.
func (t test) String() string { return t.pkg + " " + t.name }

// pattern is for -test.run.
func (t test) pattern() string { return "^" + t.name + "$" }
