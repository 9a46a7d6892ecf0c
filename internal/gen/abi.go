package main

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
)

// abi is the ABI file. Beside maps whose order matters it keeps the file's order,
// so that the output is the same in every run.
type abi struct {
	Functions []function          `json:"functions"`
	Older     []function          `json:"older_functions"`
	Enums     ordered[[]constant] `json:"enums"`
	Structs   ordered[structure]  `json:"structs"`
	Typedefs  ordered[string]     `json:"typedefs"`
	Constants ordered[string]     `json:"constants"`
}

type function struct {
	Symbol     string  `json:"symbol"`
	Name       string  `json:"name"`
	Params     []param `json:"params"`
	Deprecated bool    `json:"deprecated"`
	Since      int     `json:"since"` // 0: unknown
}

type param struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

type constant struct {
	Name  string `json:"name"`
	Value int64  `json:"value"`
}

// structure is a struct or union with its fields; field holds either a plain
// type or, when anonymous, a structure of its own.
type structure struct {
	Kind   string  `json:"kind"`
	Size   int     `json:"size"`
	Align  int     `json:"align"`
	Fields []field `json:"fields"`
}

type field struct {
	Name   string  `json:"name"`
	Offset int     `json:"offset"`
	Size   int     `json:"size"`
	Type   string  `json:"type"` // "struct" or "union" for an anonymous one
	Fields []field `json:"fields"`
}

// ordered is a JSON object that keeps the order of its keys.
type ordered[T any] struct {
	keys []string
	m    map[string]T
}

func (o *ordered[T]) UnmarshalJSON(b []byte) error {
	if err := json.Unmarshal(b, &o.m); err != nil {
		return err
	}
	dec := json.NewDecoder(strings.NewReader(string(b)))
	if _, err := dec.Token(); err != nil {
		return err
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return err
		}
		var skip json.RawMessage
		if err := dec.Decode(&skip); err != nil {
			return err
		}
		o.keys = append(o.keys, key.(string))
	}
	return nil
}

func readABI(name string) (*abi, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	a := new(abi)
	if err := json.Unmarshal(b, a); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	a.Older = slices.DeleteFunc(a.Older, func(f function) bool { return a.current(f.Symbol) })
	return a, nil
}

// current reports whether symbol is one of CUDA 13.0's own functions.
func (a *abi) current(symbol string) bool {
	return slices.ContainsFunc(a.Functions, func(f function) bool { return f.Symbol == symbol })
}

// all returns the functions in the order of their ids.
func (a *abi) all() []function { return slices.Concat(a.Functions, a.Older) }

// method returns the Go name of a driver function: its exact symbol, exported.
func (f function) method() string { return "C" + f.Symbol[1:] }

// prototype returns the function as C declares it.
func (f function) prototype() string {
	params := make([]string, len(f.Params))
	for i, p := range f.Params {
		params[i] = p.Type + " " + p.Name
		if strings.HasSuffix(p.Type, "*") {
			params[i] = p.Type + p.Name
		}
	}
	return fmt.Sprintf("CUresult %s(%s)", f.Symbol, strings.Join(params, ", "))
}

// version spells a CUDA version number: 12030 is 12.3.
func version(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
