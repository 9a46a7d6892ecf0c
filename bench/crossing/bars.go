package main

import "github.com/gpufd/gpufd/bench/internal/report"

// bars are what the project claims of its own ways.
func (r results) bars() []report.Bar {
	bars := []report.Bar{{
		Claim: "allocations of ours, plain or with a context, in any form but a new out-pointer",
		Limit: 0, Got: r.mostOfOurs(),
	}}
	if r.index(plainCgo) < 0 {
		return bars
	}
	plain, context := r.index(oursPlain), r.index(oursContext)
	return append(bars,
		report.Bar{Claim: "ours / cgo, 4 arguments", Limit: 1.35, Got: r.ratio(four, plain, plainCgo)},
		report.Bar{Claim: "ours / cgo, 11 arguments", Limit: 1.5, Got: r.ratio(eleven, plain, plainCgo)},
		report.Bar{
			Claim: "ours with a context / set-current and call through cgo, 4 arguments",
			Limit: 0.75, Got: r.ratio(four, context, boundCgo),
		},
		report.Bar{
			Claim: "ours with a context / set-current and call through cgo, 11 arguments",
			Limit: 0.75, Got: r.ratio(eleven, context, boundCgo),
		},
	)
}

// mostOfOurs is the most allocations of a call of ours.
func (r results) mostOfOurs() (most float64) {
	for _, name := range []string{oursPlain, oursContext} {
		for f := range newOut {
			most = max(most, float64(r.allocs(f, r.index(name))))
		}
	}
	return most
}
