//go:build race

package cutest

// RaceDetector reports whether the tests were built with -race. The detector
// takes memory and addresses as it goes along, and makes sync.Pool forget at random.
const RaceDetector = true
