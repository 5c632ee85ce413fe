// Package events defines the event log: events, their encoding and subjects, and
// the interfaces of a log.
//
// # Events
//
//	Begin    starts a session of a shard; records of older sessions are ignored
//	Object   puts or deletes one key; the fold stages it while its session lists
//	Alive    is the heartbeat of a session; the first one ends its listing
//	Overlay  replaces values on the order of an operator or a guard
//	Segment  is the restart record: another build continues, or a new epoch begins
//
// A log numbers its records densely from 1. A position (ident.Position) is such
// a number with its epoch. A [Record] has only its Seq: the fold derives the epoch
// from the Segment records.
//
// Events, payloads and keys are immutable: callers may share them, and must not
// write to their bytes.
//
// natslog keeps the log on NATS JetStream, memlog in memory; archive reads a log
// from a file. Package suite tests all of them.
package events
