package weights

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// ok returns v, and fails the test if there is an error: ok(f())(t).
func ok[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		require.NoError(t, err)
		return v
	}
}
