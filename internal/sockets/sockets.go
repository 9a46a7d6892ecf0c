// Package sockets says where sockets are if nobody names one. The Python package has the same places.
package sockets

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
)

// claimEnv names the directory that the containers of a Kubernetes ResourceClaim share, if
// NVIDIA's driver for dynamic resource allocation makes one.
const claimEnv = "NVIDIA_DRA_LOCAL_IPC_DIR"

// UserDir returns a directory in the user's runtime directory, or one of the user's in the temporary directory.
func UserDir() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "gpufd")
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("gpufd-%d", os.Getuid()))
}

// Dir returns the directory of default sockets: the one that the containers of a claim share, or [UserDir].
func Dir() string {
	if dir := os.Getenv(claimEnv); filepath.IsAbs(dir) {
		return filepath.Join(dir, "gpufd")
	}
	return UserDir()
}

// Keeper returns the default socket of a keeper.
func Keeper() string { return filepath.Join(Dir(), "keeper.sock") }

// offers is the directory of sockets that are each of one offer.
func offers() string { return filepath.Join(Dir(), "offers") }

// suffix ends the names of such sockets.
const suffix = ".sock"

// maxPath is how long the path of a socket may be.
const maxPath = 107

// Offer returns the socket of an offer of that name that has its own. In the path all characters of the name but letters,
// digits and "_.-~" are escaped as in URLs.
func Offer(name string) (string, error) {
	path := filepath.Join(offers(), strings.ReplaceAll(url.QueryEscape(name), "+", "%20")+suffix)
	if len(path) > maxPath {
		return "", fmt.Errorf("the default socket of %q would be %d bytes long, and %d are allowed: name a socket", name, len(path), maxPath)
	}
	return path, nil
}

// Offers returns the sockets that are there, by the names of their offers.
func Offers() (map[string]string, error) {
	entries, err := os.ReadDir(offers())
	if err != nil {
		if os.IsNotExist(err) {
			err = nil
		}
		return nil, err
	}
	all := map[string]string{}
	for _, e := range entries {
		escaped, ok := strings.CutSuffix(e.Name(), suffix)
		name, err := url.PathUnescape(escaped)
		if ok && err == nil && e.Type() == os.ModeSocket {
			all[name] = filepath.Join(offers(), e.Name())
		}
	}
	return all, nil
}
