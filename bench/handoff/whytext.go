package main

const whyText = `The rivals of handoff.md, C and ours, and others between them: each differs from the one above it, or from the one that its
line names, by one thing. p50 of handoffs, in µs how much more that is than c-before and than the rival above, and where: *arrive* is
from the buffer being ready to the consumer having the offer, *work* until it begins to acknowledge, *reply* until the producer knows.
*calls* is the four driver calls of the work together. Medians, so they do not add up to the whole exactly.

`

const scheduleText = `Handoffs one after the other, beside those measured. Times on a processor (run) and ready for one, of all threads together;
how often a thread went onto a processor (slices), left it because it waited (asked) or had to (preempted), and woke up on another
(migrations); page faults. A kernel that does not count something says 0.`

// isolates is what a rival is for, by its name on the command line.
var isolates = map[string]string{
	cBefore:             "C, exported beforehand",
	"c-poll":            "c-before, but both sides wait in epoll_wait, then receive",
	"c-thread":          "c-before, but on both sides a thread in epoll_wait wakes the one that receives",
	"c-thread-consumer": "the same on the consumer's side only",
	"c-thread-producer": "the same on the producer's side only",
	"c-hop":             "c-before, but each driver call of the import runs on another thread than the one before, which is asleep till then",
	"c-hop-spin":        "the same with threads that spin: another core, but nobody to wake",
	"c-wakes":           "c-before, but the consumer wakes a thread before each driver call of the import, which goes to sleep again",
	"c-threads":         "c-before with 20 more threads in each process",
	"c-mappings":        "c-before with 200 more mappings in each process, of 1 MiB each, touched",
	"c-properties":      "c-before, but the import asks for the memory's properties, as vmm does",
	"c-readonly":        "c-before, mapped read-only, as ours",
	"c-no-context":      "c-before, but the consumer's thread has no current context while it imports",
	"c-like-vmm":        "c-properties, c-readonly and c-no-context at once",
	"c-spin":            "c-before, but nobody sleeps: what waking costs at all",
	"c-spinners":        "c-before with 2 threads in each process that spin during the handoff",
	"c-exec":            "c-before with a consumer that was started as a program of its own",
	"c+go":              "a producer in C, a consumer in Go as in go-raw",
	"go+c":              "a producer in Go as in go-raw, a consumer in C",
	"go-raw":            "Go, which makes the calls of c-before on one locked thread, with system calls that the scheduler does not know of",
	"go-block":          "go-raw, but the scheduler knows of the system calls",
	"go-unlocked":       "go-block, but no goroutine keeps a thread",
	"go-vmm":            "go-unlocked with package vmm for driver calls, read-only",
	"go-poll":           "go-vmm, but the runtime's poller waits",
	"go-sock":           "go-vmm with package sock",
	"go-deadlines":      "go-sock with a deadline for each wait",
	"go-deadline":       "go-sock with one deadline for the handoff, set before the buffer is made",
	"go-connect":        "go-deadlines, on a connection that is made for each handoff, before the buffer",
	"go-hop":            "go-deadlines, but another goroutine receives and passes on what came",
	"go-poll-consumer":  "go-raw, but the consumer waits in the runtime's poller, on a goroutine that keeps its thread",
	"go-poll-free":      "the same, on a goroutine that does not",
	"go-poll-producer":  "go-raw, but the producer waits in the poller, on a goroutine that does not keep its thread",
	"go-raw-free":       "go-raw, but no goroutine keeps its thread, so that each call sets the context",
	"go-raw-bind":       "go-raw, but each call sets the context",
	"go-raw-vmm":        "go-raw with package vmm",
	"go-raw-bare":       "go-raw, but the descriptor that comes is made no os.File",
	"go-raw-cu":         "go-raw with package cu in the consumer, read-write",
	"go-raw-vmm-again":  "go-raw-vmm, but the consumer imports and maps other memory once when it is woken, before the buffer is made",
	"go-spin":           "go-raw, but nobody sleeps, as in c-spin",
	"go-spin-vmm":       "go-spin with package vmm",
	"go-spin-again":     "go-spin, but the consumer imports and maps other memory once when it is woken",
	"go-spin-vmm-again": "go-spin-again with package vmm",
	"go-raw-properties": "go-raw, but the import asks for the memory's properties",
	oursBefore:          "package share",
	"gpufd-again":       "gpufd-before, but just before the buffer is ready the producer begins an offer that is over at once",
	oursBeforeSpin:      "gpufd-before-lock, but both sides look for answers instead of sleeping (share.WithSpin)",
	"gpufd-before-lock": "gpufd-before, but on each side one goroutine, which keeps its thread, makes, attaches to and lets go of memory",
	"gpufd-before-free": "gpufd-before, but both sides look for answers instead of sleeping, and no goroutine keeps a thread",
	"gpufd-1":           "gpufd-before with GOMAXPROCS=1",
	"gpufd-2":           "gpufd-before with GOMAXPROCS=2",
	"gpufd-4":           "gpufd-before with GOMAXPROCS=4",
	"gpufd-no-gc":       "gpufd-before without garbage collection",
	"gpufd-2-cores":     "gpufd-before, both processes on two cores",
	"c-2-cores":         "c-before, both processes on two cores",
	"gpufd-1-core":      "gpufd-before, both processes on one core",
	"c-1-core":          "c-before, both processes on one core",
}
