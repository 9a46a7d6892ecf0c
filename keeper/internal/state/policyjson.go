package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxPolicy bounds the text of a policy, in bytes.
const maxPolicy = 1 << 20

// ParsePolicy reads a policy from JSON, for a keeper that runs as uid owner:
//
//	{
//	  "grace": "10m",
//	  "rules": [
//	    {"uid": 1000, "allow": ["read", "write", "remove"], "bytes": 85899345920, "names": 100},
//	    {"gid": 50, "prefix": "weights/", "allow": ["read"], "leases": 64},
//	    {"gid": 50, "prefix": "scratch/", "allow": ["read", "write", "remove"], "expiry": "24h"}
//	  ]
//	}
//
// It refuses members that it does not know or that come twice: a policy means what it
// says, or nothing.
func ParsePolicy(text []byte, owner uint32) (Policy, error) {
	p := Policy{}
	if len(text) > maxPolicy {
		return p, fmt.Errorf("policy: %d bytes; %d are allowed", len(text), maxPolicy)
	}
	if err := checkMembers(text); err != nil {
		return p, fmt.Errorf("policy: %w", err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return Policy{}, fmt.Errorf("policy: %w; docs/keeper.md says what it may have", err)
	}
	p.Owner = owner
	if err := p.Check(); err != nil {
		return Policy{}, err
	}
	return p, nil
}

// checkMembers returns an error unless text is one object, in which no object has a member
// twice. Package json would take the last one, and anything after the value.
func checkMembers(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if t, err := d.Token(); err != nil {
		return unexpected(err)
	} else if t != json.Delim('{') {
		return errors.New("it is no JSON object")
	}
	if err := checkObject(d); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("there is something behind the object, at byte %d", d.InputOffset())
	}
	return nil
}

// checkObject reads on after a '{', until its '}' is read.
func checkObject(d *json.Decoder) error {
	seen := map[string]bool{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return unexpected(err)
		}
		name, _ := key.(string)
		if strings.Trim(name, "abcdefghijklmnopqrstuvwxyz") != "" { // package json takes "Allow" for "allow"
			return fmt.Errorf("unknown member %q, at byte %d", name, d.InputOffset())
		}
		if seen[name] {
			return fmt.Errorf("member %q comes twice in one object, at byte %d", name, d.InputOffset())
		}
		seen[name] = true
		if err := checkValue(d); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return unexpected(err)
}

func checkValue(d *json.Decoder) error {
	t, err := d.Token()
	switch {
	case err != nil:
		return unexpected(err)
	case t == json.Delim('{'):
		return checkObject(d)
	case t != json.Delim('['):
		return nil
	}
	for d.More() {
		if err := checkValue(d); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return unexpected(err)
}

// unexpected returns io.ErrUnexpectedEOF for io.EOF.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
