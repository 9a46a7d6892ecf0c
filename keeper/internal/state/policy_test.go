package state

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParsePolicy(t *testing.T) {
	p := ok(ParsePolicy([]byte(`{
	  "grace": "10m",
	  "rules": [
	    {"uid": 1000, "allow": ["read", "write", "remove"], "bytes": 85899345920, "names": 100},
	    {"gid": 50, "prefix": "weights/", "allow": ["read"], "leases": 0, "expiry": "24h"}
	  ]
	}`), 7))(t)
	require.Equal(t, Policy{Owner: 7, Grace: Duration(10 * time.Minute), Rules: []Rule{
		{UID: at(uint32(1000)), Allow: []Right{Read, Write, Remove}, Bytes: at(uint64(80 << 30)), Names: at(100)},
		{GID: at(uint32(50)), Prefix: "weights/", Allow: []Right{Read}, Leases: at(0), Expiry: Duration(24 * time.Hour)},
	}}, p)
	p = ok(ParsePolicy([]byte(`{}`), 7))(t)
	require.Equal(t, DefaultPolicy(7), p)
}

func TestParsePolicyRefuses(t *testing.T) {
	rule := func(s string) string { return `{"rules": [` + s + `]}` }
	for text, words := range map[string]string{
		``:                            "unexpected EOF",
		`{"rules": [`:                 "unexpected EOF",
		`[]`:                          "no JSON object",
		`{} {}`:                       "behind the object",
		`{"rule": []}`:                `unknown field "rule"; docs/keeper.md says`,
		`{"grace": 10}`:               "grace",
		`{"grace": "10"}`:             "missing unit",
		`{"grace": "-1s"}`:            "negative",
		`{"grace":"1s","grace":"2s"}`: `"grace" comes twice`,
		rule(`{"uid": 1, "allow": ["read"], "Allow": ["write"]}`):                               `unknown member "Allow"`,
		rule(`{"uid": 1, "allow": ["read"], "u\u0131d": 1}`):                                    `unknown member`,
		rule(`{"uid": 1, "allow": ["read"], "allow": ["write"]}`):                               `"allow" comes twice`,
		rule(`{"allow": ["read"]}`):                                                             "rule 1: it is for a uid or for a gid",
		rule(`{"uid": 1, "gid": 1, "allow": ["read"]}`):                                         "give one of them",
		rule(`{"uid": -1, "allow": []}`):                                                        "-1",
		rule(`{"uid": 1}`):                                                                      `"allow" is missing`,
		rule(`{"uid": 1, "allow": ["reed"]}`):                                                   `right "reed"`,
		rule(`{"uid": 1, "allow": [], "names": -1}`):                                            "-1 names",
		rule(`{"uid": 1, "allow": [], "leases": -1}`):                                           "-1 leases",
		rule(`{"uid": 1, "allow": [], "bytes": -1}`):                                            "-1",
		rule(`{"uid": 1, "allow": [], "quota": 1}`):                                             `unknown field "quota"`,
		rule(`{"uid": 1, "allow": [], "prefix": "` + strings.Repeat("x", 201) + `"}`):           "201 bytes",
		rule(`{"uid": 1, "allow": []}, {"gid": 1, "allow": []}, {"uid": 1, "allow": ["read"]}`): "rules 1 and 3 are both",
		strings.Repeat(" ", maxPolicy+1):                                                        "1048577 bytes",
	} {
		_, err := ParsePolicy([]byte(text), 7)
		require.ErrorContains(t, err, words, "%.80s", text)
		require.ErrorContains(t, err, "policy: ")
	}
	require.ErrorContains(t, Policy{Rules: make([]Rule, maxRules+1)}.Check(), "1025 rules")
	require.ErrorContains(t, Policy{Grace: -1}.Check(), "negative")
	require.ErrorContains(t, Policy{Rules: []Rule{{UID: at(uint32(1)), Allow: []Right{}, Expiry: -1}}}.Check(), "negative")
}

// One of the rules that match decides: the longest prefix, and the uid before the gid.
func TestWhichRuleCounts(t *testing.T) {
	uid := func(n uint32, prefix string) Rule { return Rule{UID: &n, Prefix: prefix} }
	gid := func(n uint32, prefix string) Rule { return Rule{GID: &n, Prefix: prefix} }
	rules := []Rule{gid(50, ""), uid(2000, ""), uid(2000, "a/"), gid(50, "a/b"), gid(50, "a/"), uid(1000, "own/")}
	p := Policy{Owner: 1000, Rules: rules}.complete()
	require.Len(t, rules, 6)
	for _, c := range []struct {
		w    Who
		name string
		want string
	}{
		{Who{UID: 2000, GID: 50}, "x", uid(2000, "").String()},
		{Who{UID: 2000, GID: 50}, "a/x", uid(2000, "a/").String()},
		{Who{UID: 2000, GID: 50}, "a/bx", gid(50, "a/b").String()},
		{Who{UID: 2001, GID: 50}, "x", gid(50, "").String()},
		{Who{UID: 2001, GID: 50}, "a/x", gid(50, "a/").String()},
		{Who{UID: 2000, GID: 51}, "a/bx", uid(2000, "a/").String()},
		{Who{UID: 1000, GID: 50}, "x", uid(1000, "").String()},
		{Who{UID: 1000, GID: 50}, "a/x", uid(1000, "").String()},
		{Who{UID: 1000, GID: 1}, "own/x", uid(1000, "own/").String()},
	} {
		require.Equal(t, c.want, p.rule(c.w, c.name).String(), "%v %s", c.w, c.name)
	}
	require.Nil(t, p.rule(Who{UID: 3000, GID: 51}, "a/bx"))
}

// The owner's own rule is there unless the policy has one, and a Rule for nobody is for
// nobody.
func TestOwnersRule(t *testing.T) {
	require.NoError(t, errOf(DefaultPolicy(7).complete().allow(Who{UID: 7}, "x", Remove)))
	_, err := Policy{Owner: 7, Rules: []Rule{{UID: at(uint32(7)), Allow: []Right{Read}}}}.complete().allow(Who{UID: 7}, "x", Write, Remove)
	refused(t, err, Denied, "may not write or remove", "uid 7", "allows read")
	_, err = Policy{Owner: 7, Rules: []Rule{{Allow: []Right{Read}}, {GID: at(uint32(9)), Prefix: "x"}}}.complete().allow(Who{GID: 9}, "x", Read)
	refused(t, err, Denied, "allows nothing")
	_, err = Policy{Owner: 7, Rules: []Rule{{Allow: []Right{Read}}}}.complete().allow(Who{}, "x", Read)
	refused(t, err, Denied, "no rule")
	require.Contains(t, (&Rule{}).String(), "nobody")
}

// FuzzPolicy: ParsePolicy ends, and what it takes can be asked.
func FuzzPolicy(f *testing.F) {
	for _, seed := range []string{`{}`, `{"grace":"1s","rules":[{"uid":1,"prefix":"a","allow":["read","write"],"bytes":1,"names":2,"leases":3,"expiry":"1h"}]}`, `[[[`, `{"rules":[null]}`, `{"rules":null}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParsePolicy(text, 7)
		if err != nil {
			return
		}
		require.NoError(t, p.Check())
		s := New(p)
		if _, err := s.Book(newBooking("aa", by(Writer{Who: Who{UID: 1}}))); err != nil {
			require.Contains(t, []Code{Denied, Quota}, CodeOf(err))
		}
		require.True(t, allows(s.rules().rule(Who{UID: 7}, "x"), Read) || len(p.Rules) > 0)
	})
}

// The owner has all rights, whatever rules there are for his group; rules for his uid bind him.
func TestOwnerIsBoundByUID(t *testing.T) {
	p := Policy{Owner: 7, Rules: []Rule{
		{GID: at(uint32(7)), Prefix: "w/", Allow: []Right{Read}},
		{UID: at(uint32(7)), Prefix: "v/", Allow: []Right{Read}},
	}}.complete()
	require.NoError(t, errOf(p.allow(Who{UID: 7, GID: 7}, "w/x", Write)))
	_, err := p.allow(Who{UID: 7, GID: 7}, "v/x", Write)
	require.Equal(t, Denied, CodeOf(err))
	_, err = p.allow(Who{UID: 8, GID: 7}, "w/x", Write)
	require.Equal(t, Denied, CodeOf(err))
	require.NoError(t, errOf(p.allow(Who{UID: 8, GID: 7}, "w/x", Read)))
}
