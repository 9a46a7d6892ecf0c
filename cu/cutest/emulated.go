package cutest

import "os"

// Emulated reports whether the tests run under qemu-user, as scripts/test-arm64.sh
// says with GPUFD_EMULATED=1: there memory holds translated code, too.
func Emulated() bool { return os.Getenv("GPUFD_EMULATED") == "1" }
