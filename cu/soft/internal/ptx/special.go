package ptx

import "time"

// A special register is read by a thread, and not written.
type special struct {
	typ      typ
	value    func(t *thread) uint64
	changes  bool // it is read anew each time
	reserves bool // it is about the shared memory of the system
}

// warpSize is the same on every GPU so far.
const warpSize = 32

var (
	word32 = typ{bitsKind, 4}
	word64 = typ{bitsKind, 8}
)

// specials are the special registers that are known, as they are called.
var specials = newSpecials()

func newSpecials() map[string]*special {
	none := func(*thread) uint64 { return 0 } // of the grid there is one
	one := func(*thread) uint64 { return 1 }
	clock := func(t *thread) uint64 { return uint64(time.Since(t.block.launch.began).Nanoseconds()) }
	timer := func(*thread) uint64 { return uint64(time.Now().UnixNano()) }
	low := func(f func(*thread) uint64) func(*thread) uint64 {
		return func(t *thread) uint64 { return uint64(uint32(f(t))) }
	}
	high := func(f func(*thread) uint64) func(*thread) uint64 {
		return func(t *thread) uint64 { return f(t) >> 32 }
	}
	total := func(t *thread) uint64 { return t.block.launch.sharedBytes() }
	workspace := func(t *thread) uint64 { // either half of the address of the grid's barrier
		if t.block.launch.Cooperative {
			return workspaceWindow >> 32
		}
		return 0
	}
	m := map[string]*special{
		"%laneid":                 {typ: word32, value: func(t *thread) uint64 { return uint64(t.lane()) }},
		"%warpid":                 {typ: word32, value: func(t *thread) uint64 { return uint64(t.index / warpSize) }},
		"%nwarpid":                {typ: word32, value: func(t *thread) uint64 { return uint64((len(t.block.threads) + warpSize - 1) / warpSize) }},
		"%lanemask_eq":            {typ: word32, value: func(t *thread) uint64 { return 1 << t.lane() }},
		"%lanemask_le":            {typ: word32, value: func(t *thread) uint64 { return 2<<t.lane() - 1 }},
		"%lanemask_lt":            {typ: word32, value: func(t *thread) uint64 { return 1<<t.lane() - 1 }},
		"%lanemask_ge":            {typ: word32, value: func(t *thread) uint64 { return uint64(^uint32(1<<t.lane() - 1)) }},
		"%lanemask_gt":            {typ: word32, value: func(t *thread) uint64 { return uint64(^uint32(2<<t.lane() - 1)) }},
		"%smid":                   {typ: word32, value: func(t *thread) uint64 { return uint64(t.block.core) }},
		"%nsmid":                  {typ: word32, value: func(t *thread) uint64 { return uint64(t.block.launch.cores) }},
		"%gridid":                 {typ: word64, value: none},
		"%dynamic_smem_size":      {typ: word32, value: func(t *thread) uint64 { return uint64(t.block.launch.Shared) }},
		"%total_smem_size":        {typ: word32, value: total},
		"%aggr_smem_size":         {typ: word32, value: total},
		"%reserved_smem_offset_1": {typ: word32, value: func(t *thread) uint64 { return alignUp(t.block.launch.sharedBytes(), 16) }, reserves: true},
		"%envreg0":                {typ: word32, value: none},
		"%envreg1":                {typ: word32, value: workspace},
		"%envreg2":                {typ: word32, value: workspace},
		"%current_graph_exec":     {typ: word64, value: none},
		"%is_explicit_cluster":    {typ: tpred, value: none},
		"%cluster_ctarank":        {typ: word32, value: none},
		"%cluster_nctarank":       {typ: word32, value: one},
		"%clock":                  {typ: word32, value: low(clock), changes: true},
		"%clock64":                {typ: word64, value: clock, changes: true},
		"%clock_hi":               {typ: word32, value: high(clock), changes: true},
		"%globaltimer":            {typ: word64, value: timer, changes: true},
		"%globaltimer_lo":         {typ: word32, value: low(timer), changes: true},
		"%globaltimer_hi":         {typ: word32, value: high(timer), changes: true},
	}
	for k, d := range []string{".x", ".y", ".z"} {
		m["%tid"+d] = &special{typ: word32, value: func(t *thread) uint64 { return uint64(t.tid[k]) }}
		m["%ntid"+d] = &special{typ: word32, value: func(t *thread) uint64 { return uint64(t.block.launch.Block[k]) }}
		m["%ctaid"+d] = &special{typ: word32, value: func(t *thread) uint64 { return uint64(t.block.id[k]) }}
		m["%nctaid"+d] = &special{typ: word32, value: func(t *thread) uint64 { return uint64(t.block.launch.Grid[k]) }}
		m["%clusterid"+d], m["%nclusterid"+d] = m["%ctaid"+d], m["%nctaid"+d]
		m["%cluster_ctaid"+d], m["%cluster_nctaid"+d] = m["%cluster_ctarank"], m["%cluster_nctarank"]
	}
	return m
}
