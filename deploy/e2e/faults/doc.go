// Package faults kills, stops, cuts off and robs what a mesh is made of, while
// requests run through Envoys and changes through the watcher, and judges after
// each fault what was promised: nothing acknowledged is lost, there is one chain
// of versions, the Envoys come to the last one, and no request fails.
//
// What needs root, or minutes, is built with the tag `faults` and run by `make
// test-faults`.
package faults
