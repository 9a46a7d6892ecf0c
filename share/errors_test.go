package share

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestErrorsSayWhoSaysSo(t *testing.T) {
	require.Equal(t, `refused by the peer (busy): come\x1b again`, (&RefusalError{Code: RefusedBusy, Text: "come\x1b again"}).Error())
	require.Equal(t, "refused by the peer (code 99): ", (&RefusalError{Code: 99, Text: ""}).Error())
	require.Equal(t, "the consumer reports: very; bad", (&VerdictError{Text: "very\nbad"}).Error())
	require.NotErrorIs(t, &RefusalError{}, ErrVerdict)
	require.NotErrorIs(t, &VerdictError{}, ErrRefused)
}
