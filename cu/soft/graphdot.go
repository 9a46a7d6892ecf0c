package soft

import (
	"fmt"
	"os"
	"strings"

	"github.com/gpufd/gpufd/cu/sys"
)

// cuGraphDebugDotPrint writes the graph for Graphviz, in the same words
// whatever the flags.
func (m *machine) cuGraphDebugDotPrint(h sys.CUgraph, path *byte, _ uint32) sys.CUresult {
	var text string
	r := with(m, m.findGraph, h, func(g *graph) sys.CUresult {
		text = g.dot()
		return valid(path != nil)
	})
	if r == sys.CUDA_SUCCESS && os.WriteFile(sys.GoString(path, 4096), []byte(text), 0o666) != nil {
		r = sys.CUDA_ERROR_OPERATING_SYSTEM
	}
	return r
}

// dot describes the graph in Graphviz' language.
func (g *graph) dot() string {
	var b strings.Builder
	fmt.Fprintf(&b, "digraph dot {\n")
	for i, follows := range topology(g.nodes) {
		kind := strings.TrimPrefix(g.nodes[i].work.kind.String(), "CU_GRAPH_NODE_TYPE_")
		fmt.Fprintf(&b, "\tn%d [label=%q];\n", i, fmt.Sprint(i, " ", kind))
		for _, f := range follows {
			fmt.Fprintf(&b, "\tn%d -> n%d;\n", f, i)
		}
	}
	b.WriteString("}\n")
	return b.String()
}
