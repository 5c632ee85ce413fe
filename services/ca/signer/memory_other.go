//go:build !linux

package signer

// inMemory reports whether a file is on a file system without a disk, which only
// Linux tells.
func inMemory(string) (bool, error) { return false, nil }
