// Package replica keeps a frontend's own copy of the published world. It
// follows the version chain, checks every step by its root, indexes the world
// for generation, and writes the served version to a store of its own, from
// which it starts if nothing else is alive.
//
// It accepts only greater versions. Serving never waits for the disk.
package replica
