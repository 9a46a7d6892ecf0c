package api

import (
	"bytes"
	"encoding/json"
)

// Data describes a part to its readers: it is the application data of the part's offer, as JSON.
type Data struct {
	Name    string            `json:"name"`
	Version uint64            `json:"version"`
	Part    int               `json:"part"`  // its index, from 0
	Parts   int               `json:"parts"` // of the version
	Labels  map[string]string `json:"labels,omitempty"`
	Digest  string            `json:"digest"`           // of the part's bytes: see keeper.Digest
	Layout  string            `json:"layout,omitempty"` // digest of the names, types, shapes and places of the tensors in Table, or "" if its writer gave none
	Table   json.RawMessage   `json:"table,omitempty"`  // the writer's table of what is in it
}

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
