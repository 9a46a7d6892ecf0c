//go:build !race

package cu

const raceDetector = false
