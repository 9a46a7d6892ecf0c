package report

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTicks(t *testing.T) {
	for _, tt := range []struct {
		name      string
		ticks     ticks
		low, high float64
		want      []string
	}{
		{"linear", ticks{format: number}, 0, 42, []string{"0", "5", "10", "15", "20", "25", "30", "35", "40"}},
		{"one decade", ticks{format: shortDuration, log: true}, 15, 220, []string{"20 ns", "50 ns", "100 ns", "200 ns"}},
		{"part of a decade", ticks{format: shortDuration, log: true}, 170e3, 450e3, []string{"200 µs", "300 µs", "400 µs"}},
		{"hardly any", ticks{format: shortDuration, log: true}, 210e3, 290e3, []string{"210 µs", "220 µs", "230 µs", "240 µs", "250 µs", "260 µs", "270 µs", "280 µs", "290 µs"}},
		{"many decades", ticks{format: shortDuration, log: true}, 15, 5e6, []string{"100 ns", "1 µs", "10 µs", "100 µs", "1 ms"}},
		{"powers", ticks{format: Bytes, log: true, twos: true}, 1.9 * 1048576, 20 * 1048576, []string{"2 MiB", "4 MiB", "8 MiB", "16 MiB"}},
		{"many powers", ticks{format: number, log: true, twos: true}, 0.9, 4200, []string{"1", "4", "16", "64", "256", "1,024", "4,096"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			for _, tick := range tt.ticks.Ticks(tt.low, tt.high) {
				require.GreaterOrEqual(t, tick.Value, tt.low)
				require.LessOrEqual(t, tick.Value, tt.high)
				if tick.Label != "" {
					got = append(got, tick.Label)
				}
			}
			require.Equal(t, tt.want, got)
		})
	}
}
