// Package cutest is what a test of GPU code needs: a driver of either kind,
// and a check that nothing was left behind.
//
//	func TestMain(m *testing.M) { cutest.Main(m) }
//
//	func TestSomething(t *testing.T) {
//		dev := cutest.Device(t)
//		…
//	}
//
// Main fails a run that leaves anything behind, and names the function that made
// it: [Left] says what is looked for, CONTRIBUTING.md how to read a report.
//
// GPUFD_DRIVER chooses the driver: soft, which is the default and needs
// nothing, or cuda. With GPUFD_REQUIRE_GPU=1 a test that would be skipped for
// want of a GPU fails.
package cutest
