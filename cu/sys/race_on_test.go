//go:build race

package sys

// The race detector makes sync.Pool forget at random.
const raceDetector = true
