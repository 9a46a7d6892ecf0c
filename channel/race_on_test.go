//go:build race

package channel

const raceDetector = true
