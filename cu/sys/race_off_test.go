//go:build !race

package sys

const raceDetector = false
