package ptx

import "time"

// special is a special register.
type special uint8

const (
	tidX special = iota
	tidY
	tidZ
	ntidX
	ntidY
	ntidZ
	ctaidX
	ctaidY
	ctaidZ
	nctaidX
	nctaidY
	nctaidZ
	laneid
	warpid
	nwarpid
	lanemaskEq
	lanemaskLe
	lanemaskLt
	lanemaskGe
	lanemaskGt
	smid
	nsmid
	gridid
	dynamicShared
	totalShared
	none // of what there is none
	sole // of what there is one
	envreg1
	envreg2
	reservedShared
	clock // those that change while one looks come last
	clock64
	clockHigh
	globaltimer
	globaltimerLow
	globaltimerHigh
)

// warpSize is the same on every GPU so far.
const warpSize = 32

// specials are the special registers that are known, as they are called.
var specials = map[string]struct {
	which special
	typ   typ
}{
	"%tid.x": {tidX, word32}, "%tid.y": {tidY, word32}, "%tid.z": {tidZ, word32},
	"%ntid.x": {ntidX, word32}, "%ntid.y": {ntidY, word32}, "%ntid.z": {ntidZ, word32},
	"%ctaid.x": {ctaidX, word32}, "%ctaid.y": {ctaidY, word32}, "%ctaid.z": {ctaidZ, word32},
	"%nctaid.x": {nctaidX, word32}, "%nctaid.y": {nctaidY, word32}, "%nctaid.z": {nctaidZ, word32},
	"%laneid": {laneid, word32}, "%warpid": {warpid, word32}, "%nwarpid": {nwarpid, word32},
	"%lanemask_eq": {lanemaskEq, word32}, "%lanemask_le": {lanemaskLe, word32}, "%lanemask_lt": {lanemaskLt, word32},
	"%lanemask_ge": {lanemaskGe, word32}, "%lanemask_gt": {lanemaskGt, word32},
	"%smid": {smid, word32}, "%nsmid": {nsmid, word32}, "%gridid": {gridid, word64},
	"%dynamic_smem_size": {dynamicShared, word32}, "%total_smem_size": {totalShared, word32},
	"%clock": {clock, word32}, "%clock64": {clock64, word64}, "%globaltimer": {globaltimer, word64},
	"%clock_hi": {clockHigh, word32}, "%globaltimer_lo": {globaltimerLow, word32}, "%globaltimer_hi": {globaltimerHigh, word32},
	"%aggr_smem_size": {totalShared, word32}, "%envreg0": {none, word32}, "%envreg1": {envreg1, word32}, "%envreg2": {envreg2, word32},
	"%current_graph_exec": {none, word64}, "%reserved_smem_offset_1": {reservedShared, word32}, "%is_explicit_cluster": {none, typeNames["pred"]},
	"%clusterid.x": {ctaidX, word32}, "%clusterid.y": {ctaidY, word32}, "%clusterid.z": {ctaidZ, word32},
	"%nclusterid.x": {nctaidX, word32}, "%nclusterid.y": {nctaidY, word32}, "%nclusterid.z": {nctaidZ, word32},
	"%cluster_ctaid.x": {none, word32}, "%cluster_ctaid.y": {none, word32}, "%cluster_ctaid.z": {none, word32},
	"%cluster_nctaid.x": {sole, word32}, "%cluster_nctaid.y": {sole, word32}, "%cluster_nctaid.z": {sole, word32},
	"%cluster_ctarank": {none, word32}, "%cluster_nctarank": {sole, word32},
}

var (
	word32 = typ{bitsKind, 4}
	word64 = typ{bitsKind, 8}
)

// changes reports whether the register has to be read anew each time.
func (s special) changes() bool { return s >= clock }

// value is what the register holds for t.
func (s special) value(t *thread) uint64 {
	l := t.block.launch
	lane := uint(t.index % warpSize)
	switch s {
	case tidX, tidY, tidZ:
		return uint64(t.tid[s-tidX])
	case ntidX, ntidY, ntidZ:
		return uint64(l.Block[s-ntidX])
	case ctaidX, ctaidY, ctaidZ:
		return uint64(t.block.id[s-ctaidX])
	case nctaidX, nctaidY, nctaidZ:
		return uint64(l.Grid[s-nctaidX])
	case laneid:
		return uint64(lane)
	case warpid:
		return uint64(t.index / warpSize)
	case nwarpid:
		return uint64((len(t.block.threads) + warpSize - 1) / warpSize)
	case lanemaskEq:
		return 1 << lane
	case lanemaskLe:
		return 2<<lane - 1
	case lanemaskLt:
		return 1<<lane - 1
	case lanemaskGe:
		return uint64(^uint32(1<<lane - 1))
	case lanemaskGt:
		return uint64(^uint32(2<<lane - 1))
	case smid:
		return uint64(t.block.core)
	case nsmid:
		return uint64(l.cores)
	case dynamicShared:
		return uint64(l.Shared)
	case totalShared:
		return l.sharedBytes()
	case reservedShared:
		return alignUp(l.sharedBytes(), 16)
	case clock:
		return uint64(uint32(time.Since(l.began).Nanoseconds()))
	case clock64:
		return uint64(time.Since(l.began).Nanoseconds())
	case clockHigh:
		return uint64(time.Since(l.began).Nanoseconds()) >> 32
	case globaltimerLow:
		return uint64(uint32(time.Now().UnixNano()))
	case globaltimerHigh:
		return uint64(time.Now().UnixNano()) >> 32
	case sole:
		return 1
	case envreg1, envreg2: // halves of the address of the grid's barrier
		if l.Cooperative {
			return workspaceWindow >> 32
		}
	case globaltimer:
		return uint64(time.Now().UnixNano())
	}
	return 0 // of the grid there is one
}

// runSpecial reads a register that changes.
func runSpecial(t *thread, i *inst) { t.r[i.d] = special(i.imm).value(t) }
