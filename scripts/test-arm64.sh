#!/usr/bin/env bash
# Runs all tests, the long ones shortened, and the demo for arm64:
#   test-arm64.sh PACKAGE…
# On other machines that takes qemu-user, arm64's libc, and a kernel that starts
# arm64 programs by itself (binfmt_misc), because tests start programs. What has
# to be mounted and registered for that takes root, and is taken away again.
set -euo pipefail
cd "$(dirname "$0")/.."
export GOARCH=arm64 CGO_ENABLED=0
binfmt=/proc/sys/fs/binfmt_misc
name=gpufd-aarch64
mounted='' registered=''

die() {
	printf 'test-arm64: %s\n' "$@" >&2
	exit 1
}

as_root() {
	if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

restore() {
	[ -z "$registered" ] || echo -1 | as_root tee "$binfmt/$name" >/dev/null
	[ -z "$mounted" ] || as_root umount "$binfmt"
}

# runs reports whether this machine starts arm64 programs.
runs() { build/linux_arm64/producer -version >/dev/null 2>&1; }

# emulate has the kernel start arm64 programs with qemu.
emulate() {
	local qemu
	qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) ||
		die "there is no qemu-aarch64-static: install qemu-user-static (Debian, Ubuntu)"
	export QEMU_LD_PREFIX=${QEMU_LD_PREFIX:-/usr/aarch64-linux-gnu}
	[ -e "$QEMU_LD_PREFIX/lib/ld-linux-aarch64.so.1" ] ||
		die "there is no arm64 libc in $QEMU_LD_PREFIX: install libc6-arm64-cross (Debian, Ubuntu), or set QEMU_LD_PREFIX"
	export GPUFD_EMULATED=1
	# Before 8.0 a process that forks while another of its threads allocates leaves the
	# child with a lock of GLib's that nobody opens (gitlab.com/qemu-project/qemu, issue 285).
	export G_SLICE=always-malloc
	! runs || return 0 # it is registered already

	[ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null ||
		die "this kernel does not start arm64 programs, and to tell it how takes root:" \
			"run this as root or with sudo's rights, or have systemd-binfmt or binfmt-support register qemu-aarch64"
	if [ ! -e "$binfmt/register" ]; then
		as_root mount -t binfmt_misc binfmt_misc "$binfmt" ||
			die "cannot mount $binfmt: a container may need --privileged"
		mounted=1
	fi
	# An ELF file for arm64, executable (2) or shared (3). O: qemu gets it opened.
	# F: qemu is opened now, so it works in other mount namespaces too.
	printf '%s' ":$name:M::"'\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:'"$qemu:OF" |
		as_root tee "$binfmt/register" >/dev/null || die "cannot register qemu with $binfmt"
	registered=1
	runs || die "qemu is registered, but does not run this:" "$(build/linux_arm64/producer -version 2>&1)"
}

trap restore EXIT
trap 'exit 1' HUP INT TERM
${GO:-go} build -o build/linux_arm64/ ./cmd/...
GOARCH='' ${GO:-go} build -modfile=tools.mod -o build/gotestsum gotest.tools/gotestsum # runs here; go test builds for arm64
[ "$(uname -m)" = aarch64 ] || emulate
build/gotestsum --format pkgname -- -count=1 -short -timeout 30m -vet=off -p "$(nproc)" "$@"
scripts/demo.sh build/linux_arm64
