// Package world decodes the content at a position of the log: the last good value
// of every key, the overlays over them, and the winner among copies of one
// object. World.Apply makes the next World from changed rows, and returns the keys
// that are served differently. Worlds are immutable and safe for concurrent use.
//
// The package is pure: it uses no context, clock, log, goroutine or IO, and
// neither events nor the store.
package world
