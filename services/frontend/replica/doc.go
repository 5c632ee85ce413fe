// Package replica keeps a frontend's own copy of the published world: it
// follows the version chain, proves every step by its root, indexes the world
// for generation, and keeps what is served in a store of its own, from which it
// starts when nothing else is alive.
//
// Only greater versions are accepted. What is served never waits for the disk.
package replica
