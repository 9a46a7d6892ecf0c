//go:build race

package cu

// The race detector makes sync.Pool forget at random.
const raceDetector = true
