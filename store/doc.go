// Package store defines versions of the published world: a [Snapshot] and its
// Merkle root, the deltas between snapshots, and the interfaces of a store and of
// the version chain.
//
// A Snapshot holds the published world and never xDS resources: rows of opaque
// bytes under opaque keys. Package services/mesh/published encodes the rows; rows
// of unknown kinds pass through a reader unchanged.
//
// A version is a position of the log. All values of this package are immutable.
//
// bolt keeps versions in a file, memstore in memory. natsfeed is the version chain
// on NATS JetStream, memstore has one in memory. Package suite tests all of them.
package store
