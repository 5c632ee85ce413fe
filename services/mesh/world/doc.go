// Package world holds the world at a position of the log: the last good value of
// every key with the overlays over it, decoded, and of several copies of one
// object the one that wins. World.Apply makes the next World from content rows
// that changed, and returns the keys that are served differently. Worlds are
// immutable and safe for concurrent use.
//
// It is pure: no context, clock, log, goroutine or IO, and it knows nothing of
// events or of the store.
package world
