//go:build !unix

package process

// noCoreDumps does nothing: only Unix has the limit.
func noCoreDumps() error { return nil }
