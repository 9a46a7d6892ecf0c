// Package quiet has one test of each kind, and one that must not run. They are run by the
// tests of the program two directories above, and by no other.
package quiet

import (
	"fmt"
	"testing"
)

func TestQuiet(t *testing.T) {}

func TestLeft(t *testing.T) { t.Error("it is left to the software driver") }

func FuzzQuiet(f *testing.F) { f.Fuzz(func(*testing.T, []byte) {}) }

func Example_quiet() {
	fmt.Println("quiet")
	// Output: quiet
}

func BenchmarkQuiet(b *testing.B) {}
