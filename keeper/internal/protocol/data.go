package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/gpufd/gpufd/internal/serve"
)

// Data describes a part to its readers: it is the application data of the part's offer, as JSON.
type Data struct {
	Name    string            `json:"name"`
	Version uint64            `json:"version"`
	Part    int               `json:"part"`
	Parts   int               `json:"parts"`
	Labels  map[string]string `json:"labels,omitempty"`
	Digest  string            `json:"digest"`          // of the part's bytes: see keeper.Digest
	Table   json.RawMessage   `json:"table,omitempty"` // the writer's table of what is in it
}

// MaxTable is how many bytes a table may have: it leaves room for the rest of Data.
const MaxTable = serve.MaxData - 64<<10

// Encode returns the JSON of d. It escapes no HTML: json.Marshal would make six bytes of a '<'.
func (d Data) Encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(d); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

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
