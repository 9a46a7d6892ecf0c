// Calls measures what calls of the driver cost from Go, beside the same calls
// from C.
//
//	calls [-driver cuda|soft] [-rounds N] [-time D] [-out DIR]
//
// Each call is made in several ways in one process, in one context and on one
// stream:
//
//   - by a loop in C that one cgo call enters for many driver calls, timed in C;
//   - raw, by the methods of sys.Caller, with the context bound in each call;
//   - typed, by package cu, as a program writes it;
//   - through cgo, one crossing a call, on a locked thread that has the context;
//   - for launches, through cgo as a binding must that is called from any
//     goroutine: lock the thread, set the context, launch, unlock.
//
// The ways take turns within each round, in an order that rotates, so that
// ratios within a round say more than times of one way alone. What calls have
// queued is waited for outside the time, in small batches: only "sustained"
// meets a full queue.
//
// The program needs a GPU and cgo. With -driver soft it runs without a GPU,
// and what it measures is the software driver. It prints a table,
// writes calls.csv, calls.md and plots to the directory of -out, and exits with 2
// for a mistake in the flags, with 3 where there is no driver, and with 1 for
// other failures.
package main
