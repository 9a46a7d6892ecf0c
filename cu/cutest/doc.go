// Package cutest helps to test GPU code: it opens a driver of either kind, makes
// its functions fail, and checks that nothing was left behind.
//
//	func TestMain(m *testing.M) { cutest.Main(m) }
//
//	func TestFull(t *testing.T) {
//		faults := cutest.NewFaults(t)
//		ctx := cutest.Context(t, cutest.Device(t, faults.Option()))
//		faults.Fail("cuMemAlloc", cu.ErrOutOfMemory)
//		…
//	}
//
// [Faults] make functions of the driver fail, by the names in NVIDIA's
// documentation. A fault that never fired fails its test.
//
// [Context] fails a test that did not close what it made in the context. [Main]
// fails a run that leaves anything else behind. Both name the function that made
// it: [Left] lists what they look for, and CONTRIBUTING.md says how to read a
// report.
//
// GPUFD_DRIVER chooses the driver: soft, which is the default and needs nothing,
// or cuda. With GPUFD_REQUIRE=gpu a test that would be skipped for want of a
// GPU fails.
package cutest
