// Package store keeps built things by version: what a [Snapshot] is, its
// Merkle root, how one leads to the next, and what may be asked of a store and
// of the version chain.
//
// A Snapshot is the published world, never xDS: rows of opaque bytes under
// opaque keys. What the rows mean is known by services/mesh/index; rows of
// kinds that a reader does not know pass through it unchanged.
//
// A Version is a position of the log. Everything here is immutable once made.
//
// bolt is the store in a file, memstore the one in memory; both pass
// storetest. natsfeed is the version chain on NATS JetStream, memstore has the
// one in memory.
package store
