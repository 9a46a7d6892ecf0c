// arch: compute_80
#include "corpus.h"
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cooperative_groups/scan.h>

namespace cg = cooperative_groups;

// Tiles of a block, which sum and count.
KERNEL(tiles)
{
	cg::thread_block block = cg::this_thread_block();
	auto tile = cg::tiled_partition<8>(block);
	u32 v = load<u32>(in, self()) & 0xffff;
	u32 sum = cg::reduce(tile, v, cg::plus<u32>()), most = cg::reduce(tile, v, cg::greater<u32>());
	u32 before = cg::exclusive_scan(tile, v), with = cg::inclusive_scan(tile, v, cg::plus<u32>());
	block.sync();
	u32 next = tile.shfl_down(v, 1), any = tile.any(v & 1), ballot = tile.ballot(v & 2);
	tile.sync();
	store<uint4>(out, 2 * self(), make_uint4(sum, most, before, with));
	store<uint4>(out, 2 * self() + 1, make_uint4(next, any, ballot, tile.meta_group_rank() << 16 | block.thread_rank()));
}

// The threads that are at one place: how many there are does not depend on luck.
KERNEL(coalesced)
{
	u32 v = in[self()];
	u32 *o = reinterpret_cast<u32 *>(out);
	if (v % 2) {
		cg::coalesced_group here = cg::coalesced_threads();
		u32 sum = cg::reduce(here, v, cg::plus<u32>());
		if (here.thread_rank() == 0)
			atomicAdd(o, sum);
		atomicAdd(o + 1, 1);
	}
}

// Groups by label.
KERNEL(labelled)
{
	cg::thread_block block = cg::this_thread_block();
	auto warp = cg::tiled_partition<32>(block);
	u32 v = load<u32>(in, self());
	auto same = cg::labeled_partition(warp, v & 3);
	u32 sum = cg::reduce(same, v, cg::plus<u32>());
	store<uint2>(out, self(), make_uint2(sum, same.size() << 8 | same.thread_rank()));
}

// All blocks of the grid meet, again and again.
KERNEL(grid_steps)
{
	cg::grid_group grid = cg::this_grid();
	u32 *o = reinterpret_cast<u32 *>(out);
	u32 count = all(), i = self();
	o[i] = load<u32>(in, i);
	for (u32 s = 1; s < count; s *= 2) {
		grid.sync();
		u32 v = i >= s ? o[i - s] : 0;
		grid.sync();
		o[i] += v;
	}
	grid.sync();
	if (grid.thread_rank() == 0)
		o[count] = o[count - 1] + (u32)grid.size();
}
