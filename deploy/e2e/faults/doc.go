// Package faults kills, stops and disconnects the processes of a mesh and deletes
// their data, while requests run through Envoys and changes through the watcher.
// After each fault it checks the promises: no acknowledged record is lost, there
// is one chain of versions, the Envoys reach the last version, and no request
// fails.
//
// Tests that need root or minutes have the build tag `faults`; `make test-faults`
// runs them.
package faults
