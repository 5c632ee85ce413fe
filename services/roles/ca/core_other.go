//go:build !unix

package ca

// noCoreDumps does nothing: only Unix has the limit.
func noCoreDumps() error { return nil }
