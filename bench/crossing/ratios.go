package main

import "github.com/gpufd/gpufd/bench/internal/report"

// ratios are those of our ways to the others.
func (r results) ratios() []report.Ratio {
	ratios := []report.Ratio{{
		What: "allocations of ours, plain or with a context", Got: r.mostOfOurs(),
	}}
	if r.index(plainCgo) < 0 {
		return ratios
	}
	plain, context := r.index(oursPlain), r.index(oursContext)
	return append(ratios,
		report.Ratio{What: "ours / cgo, 4 arguments", Got: r.ratio(four, plain, plainCgo)},
		report.Ratio{What: "ours / cgo, 11 arguments", Got: r.ratio(eleven, plain, plainCgo)},
		report.Ratio{
			What: "ours with a context / set-current and call through cgo, 4 arguments",
			Got:  r.ratio(four, context, boundCgo),
		},
		report.Ratio{
			What: "ours with a context / set-current and call through cgo, 11 arguments",
			Got:  r.ratio(eleven, context, boundCgo),
		},
	)
}

// mostOfOurs is the most allocations of a call of ours.
func (r results) mostOfOurs() (most float64) {
	for _, name := range []string{oursPlain, oursContext} {
		for f := range numForms {
			most = max(most, float64(r.allocs(f, r.index(name))))
		}
	}
	return most
}
