package ptx

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// refusedForms are instructions that the software device has no units for.
var refusedForms = map[string][]string{
	tensorCores: {
		"wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r1,%r2,%r3,%r4,%r5,%r6,%r7,%r8}, [%rd1];",
		"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1}, {%r1}, {%r2}, {%f1};",
		"wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd1], {%f1};",
		"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f1,%f2,%f3,%f4};",
		"mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%f1}, {%r1}, {%r2}, {%f1}, %r3, 0;",
		"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1,%r2,%r3,%r4}, [%r5];",
		"stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r5], {%r1};",
		"movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;",
		"wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1}, %rd1, %rd2, 1, 1, 1, 0, 0;",
		"wgmma.fence.sync.aligned;", "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;",
		"tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], 32;",
	},
	textures: {
		"tex.1d.v4.f32.s32 {%f1,%f2,%f3,%f4}, [%rd1, {%r1}];", "tex.2d.v4.s32.f32 {%r1,%r2,%r3,%r4}, [%rd1, {%f1,%f2}];",
		"tex.level.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%rd1, {%f1,%f2}], %f3;",
		"tld4.r.2d.v4.f32.f32 {%f1,%f2,%f3,%f4}, [%rd1, {%f1,%f2}];", "txq.width.b32 %r1, [%rd1];", "istypep.texref %p1, %rd1;",
	},
	surfaces: {
		"suld.b.1d.b32.trap {%r1}, [%rd1, {%r2}];", "sust.b.2d.v4.b32.clamp [%rd1, {%r1,%r2}], {%r3,%r4,%r5,%r6};",
		"sured.b.add.1d.u32.trap [%rd1, {%r1}], %r2;", "suq.width.b32 %r1, [%rd1];",
	},
	asyncCopies: {
		"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r2, [%r3];",
		"cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2,%r3}], [%r4];",
		"cp.async.bulk.prefetch.L2.global [%rd1], %r1;", "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], %r2;",
		"mbarrier.arrive.expect_tx.shared::cta.b64 %rd1, [%r1], %r2;", "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], %r2;",
		"multimem.ld_reduce.global.add.u32 %r1, [%rd1];",
		"tensormap.replace.tile.rank.global.b1024.b32 [%rd1], 3;",
	},
	clusters: {
		"mapa.shared::cluster.u32 %r1, %r2, %r3;", "getctarank.shared::cluster.u32 %r1, %r2;",
		"clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %rd1;",
	},
}

// clusterForms are of instructions that are supported within a block.
var clusterForms = []string{
	"barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;",
	"ld.shared::cluster.u32 %r1, [%r2];", "st.shared::cluster.u32 [%r2], %r1;", "atom.shared::cluster.add.u32 %r1, [%r2], 1;",
	"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r2, [%r3];",
	"red.async.relaxed.cluster.global.mbarrier::complete_tx::bytes.shared::cluster.inc.u32 [%r1], %r2, [%r3];",
	"cvta.shared::cluster.u64 %rd1, %rd2;", "prefetch.tensormap [%rd1];",
}

// Instructions for tensor cores, textures, surfaces, bulk copies and clusters are refused
// when they are loaded, by name and line, behind whatever comes before them.
func TestRefused(t *testing.T) {
	seen := map[string]bool{}
	for what, list := range refusedForms {
		for _, text := range list {
			name, _, _ := strings.Cut(strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ';' })[0], ".")
			seen[name] = true
			err := refusedIn(t, text)
			require.ErrorContains(t, err, "for "+what, text)
		}
	}
	for name := range refused {
		require.True(t, seen[name], "%s is in no test", name)
		require.Nil(t, table()[name], "%s is supported", name)
	}
	for _, text := range clusterForms {
		refusedIn(t, text)
	}
}

// refusedIn loads an instruction in line 8, and wants the error to name it.
func refusedIn(t *testing.T, text string) error {
	t.Helper()
	_, err := Parse(entry("add.u32 %r1, %r1, 1;\n\n" + text + "\nret;"))
	var bad *Error
	require.ErrorAs(t, err, &bad, text)
	require.Equal(t, 8, bad.Line, "%s: %v", text, err)
	words := strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r == ';' })
	require.ErrorContains(t, err, words[0])
	return err
}
