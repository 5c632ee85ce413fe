// Package model is the world and what may be asked of it: keys, values,
// overlays, diagnostics, the World at a position, the PushContext that indexes
// it for generation, proxies and their classes.
//
// It is pure: no context, clock, log, goroutine or IO, and it knows nothing of
// events. Everything is immutable once made and safe for concurrent use.
package model
