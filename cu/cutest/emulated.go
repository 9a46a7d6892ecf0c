package cutest

import "os"

// Emulated reports whether the tests run under qemu-user: scripts/test-arm64.sh
// sets GPUFD_EMULATED=1. There memory holds translated code, too.
func Emulated() bool { return os.Getenv("GPUFD_EMULATED") == "1" }
