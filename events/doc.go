// Package events is the log as the domain sees it: what an event is, where it
// lies, under which subject, and what may be asked of a log.
//
// # The words of the log
//
//	Begin    a session of a shard starts: only its records count from here on
//	Object   PUT or DELETE of one key; staged while its session lists
//	Alive    heartbeat; the first of a session closes its listing
//	Overlay  the word of an operator or a guard over the world
//	Segment  the restart record: another build speaks, or a new epoch begins
//
// A log numbers its records densely from 1. A [Position] is such a number with
// the epoch in which it counts; epochs are made by Segment records and known
// to the fold only, so a [Record] carries just its Seq.
//
// Nothing here is mutated after it was made: callers may share events,
// payloads and keys freely, and must not write to their bytes.
//
// natslog is the log on NATS JetStream, memlog the one in memory; both pass
// eventstest. archive is a log in a file, to be read only.
package events
