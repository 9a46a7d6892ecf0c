# build, demo and test need only Go, git and make. check fetches the linter; race, bench
# and test-bench need a C compiler, and test-bench Python, too; test-arm64 needs qemu and
# root.
export CGO_ENABLED = 0
export GOFLAGS += -trimpath

GO       ?= go
COMMANDS := producer consumer launch ring gpufd
# Packages whose tests use the driver; their test binaries go to the GPU machine.
GPU_PKGS := cu/sys cu cu/cutest kernels kernels/digest vmm internal/safetensors internal/doctor counter share channel weights keeper keeper/server keeper/internal/mover tests/handoff tests/interop tests/compute tests/load tests/cases tests/python tests/conformance tests/corpus examples/go examples/go/08-test-without-a-gpu
# Those of them that may share a GPU with each other: the others count its memory, or have many streams or kernels wait.
GPU_TOGETHER := cu/sys cu cu/cutest kernels kernels/digest internal/safetensors internal/doctor keeper keeper/server keeper/internal/mover tests/handoff tests/interop tests/compute tests/load tests/corpus examples/go examples/go/08-test-without-a-gpu
VERSION  := $(shell git describe --always --dirty 2>/dev/null)
TOOL     := $(GO) tool -modfile=tools.mod
BENCHTIME ?= 1s
ROUNDS    ?= 25
BENCH_OUT ?= docs/benchmarks
FUZZTIME  ?= 10s
# The packages that race, test-arm64 and test-old test.
PKGS      ?= ./...
# What the gate tests with the race detector, as on an old driver (packages that fall back to older ABIs), and for
# arm64 (packages that the ABI touches most). make long tests all the others in these ways.
GATE_RACE  := ./sock ./vmm ./cu
GATE_OLD   := ./cu ./tests/conformance
GATE_ARM64 := ./cu/sys ./cu ./cu/soft ./tests/conformance
# Packages wait more than they work, so several run at once. make check vets all code. The cache does not see the
# programs and the files of other languages that tests start, hence -count=1.
GOTEST     := $(TOOL) gotestsum --format pkgname -- -p 6 -count=1 -vet=off -timeout 20m
# The packages whose tests take longest begin first.
LONGEST    := ./tests/python ./tests/pages ./keeper/server ./share ./tests/load ./channel ./tests/interop
# Flags of make test, such as -short or -run=TestFault71.
TESTFLAGS  ?=
HANDOFFS  ?= 10000
SIEGE     ?= 60s

.PHONY: all build demo test gate lint long faults check generate docs man cross test-arm64 test-old race bench test-bench test-deploy test-python bench-bundle microbench fuzz soak soak-channel hostile gpu-bundle test-gpu clean help

all: build

build: ## build the commands into build/
	$(GO) build -o build/ ./cmd/...

demo: build ## hand a buffer from producer to consumer and verify it
	scripts/demo.sh build

test: ## run all tests on the software driver
	$(GOTEST) $(TESTFLAGS) $(LONGEST) ./...

gate: demo test check ## what every change has to pass
	$(MAKE) race PKGS='$(GATE_RACE)'
	$(MAKE) test-old PKGS='$(GATE_OLD)'
	$(MAKE) test-arm64 PKGS='$(GATE_ARM64)'
	$(MAKE) microbench BENCHTIME=1x
	$(MAKE) test-bench
	$(MAKE) test-deploy
	tables=$$(mktemp -d) && trap 'rm -r "$$tables"' EXIT && $(MAKE) bench ROUNDS=1 BENCH_OUT="$$tables"

lint: ## vet everything for arm64, and check bench/ and deploy/ with staticcheck, too
	GOARCH=arm64 $(GO) vet ./...
	cd bench && CGO_ENABLED=1 $(GO) tool -modfile=../tools.mod staticcheck ./...
	cd deploy/check && $(GO) tool -modfile=../../tools.mod staticcheck ./...

long: ## run what the gate leaves out: lint; the other packages on an old driver, with the race detector and for arm64; fuzzers, soak, siege
	GATE_OLD='$(GATE_OLD)' GATE_RACE='$(GATE_RACE)' GATE_ARM64='$(GATE_ARM64)' scripts/long.sh

faults: ## run the tests of the faults of docs/faults.md
	$(GOTEST) -run Fault ./...

check: ## formatting, vet, staticcheck, drift of generated files; the crossing and the commands for arm64
	@out=$$("$$($(GO) env GOROOT)/bin/gofmt" -l $$(git ls-files -co --exclude-standard '*.go')) || exit 1; \
		test -z "$$out" || { echo "gofmt would change: $$out"; exit 1; }
	$(GO) vet ./...
	GOARCH=arm64 $(GO) vet ./cu/sys
	$(TOOL) staticcheck ./...
	scripts/drift.sh
	GOARCH=arm64 $(GO) build -o /dev/null ./cmd/...
	$(GO) mod verify

generate: ## write cu/sys/z*.go and cu/z*.go from abi/, and docs/functions.md
	$(GO) run ./internal/gen
	$(GO) run ./internal/gen/functions >docs/functions.md

docs: ## write the help of all commands into docs/commands.md
	$(GO) run ./internal/commands docs/commands.md

man: ## write man pages of the commands into build/man
	mkdir -p build/man && $(GO) run ./internal/commands build/man

cross: ## build the commands for amd64 and arm64
	for arch in amd64 arm64; do GOARCH=$$arch $(GO) build -o build/linux_$$arch/ ./cmd/... || exit 1; done

test-arm64: ## run the tests of PKGS and the demo for arm64, under qemu-aarch64 elsewhere (qemu-user-static, libc6-arm64-cross, root)
	GO='$(GO)' scripts/test-arm64.sh $(PKGS)

test-old: build ## run the tests of PKGS and the demo on the software driver as it was in CUDA 11.4
	GPUFD_SOFT_VERSION=11040 $(GOTEST) -short $(PKGS)
	GPUFD_SOFT_VERSION=11040 scripts/demo.sh build

race: ## run the tests of PKGS, the long ones shortened, with the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GOTEST) -race -short $(PKGS)

# bench/ is a module of its own, in which cgo is allowed.
bench: ## measure ROUNDS times what calls into C cost, into BENCH_OUT (needs a C compiler)
	cd bench && CGO_ENABLED=1 $(GO) build -o ../build/bench/crossing \
		-ldflags '-X github.com/gpufd/gpufd/bench/internal/report.Commit=$(VERSION)' ./crossing
	BENCH_COMMAND='make bench ROUNDS=$(ROUNDS)' build/bench/crossing -rounds '$(ROUNDS)' -out '$(BENCH_OUT)'

# The cache does not see the programs that the tests build.
test-bench: ## check and test what is in bench/ (needs a C compiler and Python)
	cd bench && CGO_ENABLED=0 $(GO) vet ./... && export CGO_ENABLED=1 && $(GO) vet ./... && \
		$(GO) test -count=1 ./...
	$(PYTHON) -B -m unittest discover -qs bench/python

# deploy/check is a module of its own, for the types of Kubernetes. -v names what was not run.
test-deploy: ## check the manifests and units of deploy/, and run a pod's containers with runc (root; GPUFD_REQUIRE=runc if it must)
	cd deploy/check && $(GO) vet ./... && $(GO) test -v -count=1 -timeout 10m ./...

PYTHON ?= /usr/bin/python3

test-python: build ## check and test python/ and examples/python (needs Python with NumPy, pip, setuptools and wheel, mypy, a C compiler)
	cd python && mypy --strict gpufd
	GPUFD_BIN='$(CURDIR)/build' $(PYTHON) -B -m unittest discover -qs python/tests
	GPUFD_BIN='$(CURDIR)/build' $(PYTHON) -B -m unittest discover -qs examples/python

bench-bundle: ## pack bench/ for a GPU machine without Go into build/gpu-bench; run-gpu.sh there measures (needs a C compiler)
	scripts/bench-bundle.sh '$(VERSION)'

microbench: ## run the benchmarks of the packages, each for BENCHTIME
	$(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) $$(grep -rl '^func Benchmark' --include='*_test.go' --exclude-dir=bench . | xargs dirname | sort -u)

fuzz: ## run every fuzzer for FUZZTIME
	scripts/fuzz.sh $(FUZZTIME)

soak: ## hand over HANDOFFS times while consumers and producers are killed: half a minute; GPUFD_SEED=N repeats a run's decisions
	GPUFD_SOAK='$(HANDOFFS)' $(GO) test -v -count=1 -timeout 30m -run '^TestFault14_Soak$$' ./tests/load

soak-channel: ## pass 1,000,000 frames to readers of every policy that stall and are killed, and check every byte: a quarter of an hour
	GPUFD_SOAK=1 $(GO) test -v -count=1 -timeout 100m -run '^TestSoak$$' ./channel

hostile: ## besiege a producer with hostile processes for SIEGE, and see that faults planted in it are noticed
	GPUFD_HOSTILE='$(SIEGE)' $(GO) test -v -count=1 -timeout 30m -run '^TestHostileMinute' ./tests/load

gpu-bundle: ## pack commands and test binaries for a GPU machine without Go into build/gpu
	scripts/gpu-bundle.sh '$(COMMANDS)' '$(GPU_PKGS)' '$(GPU_TOGETHER)' '$(VERSION)'

test-gpu: gpu-bundle ## run everything that needs a GPU, here
	GPUFD_REQUIRE=gpu build/gpu/run.sh

clean: ## remove what was built
	rm -rf build

help: ## show the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14
