//go:build !unix

package ca

// lock does nothing: only Unix has such locks, so replicas must not share files here.
func lock(string) (unlock func(), err error) { return func() {}, nil }
