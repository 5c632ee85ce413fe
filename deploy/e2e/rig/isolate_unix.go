//go:build unix && !linux

package rig

import "errors"

// Isolate fails: it needs network namespaces.
func Isolate() error {
	return errors.New("servers that cannot be on loopback need a network of their own, which needs Linux")
}
