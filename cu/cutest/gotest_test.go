package cutest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/gpufd/gpufd/cu/cutest"
)

// goTest prints what becomes of a test, as go test does, but no stacks.
func goTest(name string, test func(testing.TB)) {
	failures := cutest.Record(test)
	if len(failures) == 0 {
		fmt.Println("--- PASS:", name)
		return
	}
	fmt.Println("--- FAIL:", name)
	for _, f := range failures {
		if what, _, stack := strings.Cut(f, "made at\n"); stack {
			f = what + "made at\n    …"
		}
		fmt.Println(f)
	}
}
