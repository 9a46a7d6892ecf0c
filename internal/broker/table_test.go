package broker

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The tables in testdata say what follows from which event, in JSON: brokers in other languages
// run them, too. A step has the time in milliseconds, an event and its actions; fields that are
// zero are left out. go test -run Table -update writes the actions anew: read the difference.

var update = flag.Bool("update", false, "write the actions of the tables")

type table struct {
	About   string
	Options Options
	Steps   []tableStep
}

type tableStep struct {
	At    int64          // milliseconds
	Event map[string]any // by the name of its type
	Then  []map[string]any
}

var events = types(Work{}, Claim{}, Describe{}, AwaitWriters{}, Prepare{}, Publish{}, Supersede{}, Retire{}, Withdraw{}, GiveUp{}, Tick{}, Close{},
	Ask{}, Answer{}, Map{}, Detach{}, Revoke{}, Leave{}, Gone{}, Die{}, Lose{})

func types(all ...Event) map[string]reflect.Type {
	m := map[string]reflect.Type{}
	for _, e := range all {
		m[reflect.TypeOf(e).Name()] = reflect.TypeOf(e)
	}
	return m
}

func TestTables(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	seen := map[string]bool{}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			var all []table
			require.NoError(t, json.Unmarshal(text, &all))
			for i := range all {
				all[i].run(t, seen)
			}
			if *update {
				require.NoError(t, os.WriteFile(file, encode(t, all), 0o644))
			}
		})
	}
	for name := range events {
		require.True(t, seen[name], "no table has the event %s", name)
	}
}

// run takes the steps, and compares or records what follows.
func (tb *table) run(t *testing.T, seen map[string]bool) {
	b := New(tb.Options)
	for i := range tb.Steps {
		s := &tb.Steps[i]
		e, name := s.event(t)
		seen[name] = true
		then := []map[string]any{}
		for _, a := range b.Step(time.UnixMilli(s.At), e) {
			then = append(then, map[string]any{reflect.TypeOf(a).Name(): pruned(reflect.ValueOf(a))})
		}
		if *update {
			s.Then = then
			continue
		}
		require.JSONEq(t, jsonOf(t, s.Then), jsonOf(t, then), "%s: step %d, %s", tb.About, i+1, name)
	}
}

func jsonOf(t *testing.T, v any) string {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return string(b)
}

func (s *tableStep) event(t *testing.T) (Event, string) {
	require.Len(t, s.Event, 1)
	for name, fields := range s.Event {
		typ := events[name]
		require.NotNil(t, typ, "there is no event %s", name)
		e := reflect.New(typ)
		d := json.NewDecoder(strings.NewReader(jsonOf(t, fields)))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(e.Interface()), name)
		return e.Elem().Interface().(Event), name
	}
	return nil, ""
}

// pruned returns a value as what JSON has, without fields that are zero.
func pruned(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case time.Time:
		return x.UnixMilli()
	case fmt.Stringer:
		return x.String()
	}
	switch v.Kind() {
	case reflect.Struct:
		m := map[string]any{}
		for i := range v.NumField() {
			if f := v.Field(i); !f.IsZero() {
				m[v.Type().Field(i).Name] = pruned(f)
			}
		}
		return m
	case reflect.Slice:
		var all []any
		for i := range v.Len() {
			all = append(all, pruned(v.Index(i)))
		}
		return all
	}
	return v.Interface()
}

// encode writes tables with a step, and each action, on a line of its own.
func encode(t *testing.T, all []table) []byte {
	var b bytes.Buffer
	b.WriteString("[")
	for i, tb := range all {
		fmt.Fprintf(&b, "%s\n {\"About\": %s, \"Options\": %s, \"Steps\": [", comma(i), jsonOf(t, tb.About), jsonOf(t, pruned(reflect.ValueOf(tb.Options))))
		for j, s := range tb.Steps {
			fmt.Fprintf(&b, "%s\n  {\"At\": %d, \"Event\": %s, \"Then\": [", comma(j), s.At, jsonOf(t, s.Event))
			for k, a := range s.Then {
				fmt.Fprintf(&b, "%s\n    %s", comma(k), jsonOf(t, a))
			}
			b.WriteString("]}")
		}
		b.WriteString("]}")
	}
	b.WriteString("\n]\n")
	return b.Bytes()
}

func comma(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}
