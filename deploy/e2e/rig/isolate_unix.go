//go:build unix && !linux

package rig

import "errors"

// Isolate fails: it needs network namespaces.
func Isolate() error {
	return errors.New("what may not be on loopback needs a network of its own, which takes Linux")
}
