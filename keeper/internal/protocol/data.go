package protocol

import (
	"fmt"
	"strings"

	"github.com/gpufd/gpufd/internal/serve"
)

// MaxTable is how many bytes a table may have: it leaves room for the rest of Data.
const MaxTable = serve.MaxData - 64<<10

// OfferName returns the name that readers attach to for a part of a version with that many
// parts.
func OfferName(name string, part, parts int) string {
	if parts == 1 {
		return name
	}
	return fmt.Sprintf("%s/%d", name, part)
}

// NameOf undoes OfferName: no name of what is kept ends like a part's.
func NameOf(as string) string {
	i := strings.LastIndexByte(as, '/')
	if i > 0 && i+1 < len(as) && strings.Trim(as[i+1:], "0123456789") == "" {
		return as[:i]
	}
	return as
}

// DrainNotice is what the keeper tells readers of a name that is drained.
const DrainNotice = `{"gpufd":"drain"}`
