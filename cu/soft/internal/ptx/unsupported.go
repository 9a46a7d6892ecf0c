package ptx

// refused are the instructions of PTX that are known and not supported, and what
// they are for. Others are refused as well, but might be misspelt.
var refused = map[string]string{
	"wmma": tensorCores, "mma": tensorCores, "wgmma": tensorCores, "tcgen05": tensorCores,
	"ldmatrix": tensorCores, "stmatrix": tensorCores, "movmatrix": tensorCores,
	"tex": textures, "tld4": textures, "txq": textures, "istypep": textures,
	"suld": surfaces, "sust": surfaces, "sured": surfaces, "suq": surfaces,
	"multimem": asyncCopies, "tensormap": asyncCopies,
	"mapa": clusters, "getctarank": clusters, "clusterlaunchcontrol": clusters,
}

const (
	tensorCores = "tensor cores"
	textures    = "textures"
	surfaces    = "surfaces"
	asyncCopies = "bulk copies"
	clusters    = "clusters"
)

// ofCluster reports whether an instruction that is known within a block is about the
// other blocks of a cluster.
func (o *opcode) ofCluster() bool {
	return o.has("shared::cluster") || o.name == "barrier" && o.has("cluster")
}

// refusal returns the error for an instruction that is not in the table, is for clusters,
// or copies in bulk.
func (o *opcode) refusal() error {
	what, ok := refused[o.name]
	if !ok && o.ofCluster() {
		what, ok = clusters, true
	}
	if o.name == "cp" {
		what, ok = asyncCopies, true
	}
	if ok {
		return errorf(o.line, "the instruction %s is not supported: it is for %s", o.text, what)
	}
	return errorf(o.line, "the instruction %s is not supported", o.text)
}
