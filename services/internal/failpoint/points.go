// Package failpoint lets a test end a process at one step of its work, to see what
// is made of what it leaves behind. Programs that are built with the tag
// `faults` obey the environment variable MESHLOG_STOP_AT; in all others At is
// nothing.
package failpoint

// Point is a step of a process: the process's name, a dot, and what has just
// happened or is about to.
type Point string

// The steps at which a process may end.
const (
	BuilderLeads          Point = "builder.leads"           // it holds the lease, and has done nothing yet
	BuilderFolded         Point = "builder.folded"          // a record is folded, in memory
	BuilderPublish        Point = "builder.publish"         // a version is about to be published
	BuilderPublished      Point = "builder.published"       // the chain has it, the file has not
	BuilderFile           Point = "builder.file"            // version, fold and cursor are about to be filed
	BuilderFiled          Point = "builder.filed"           // the file has them
	BuilderAcknowledge    Point = "builder.acknowledge"     // the log is about to hear how far the file goes
	BuilderAcknowledged   Point = "builder.acknowledged"    // it has heard
	BuilderBase           Point = "builder.base"            // the base of a segment is durable, nobody names it
	BuilderSegment        Point = "builder.segment"         // the segment is on the log
	BuilderHold           Point = "builder.hold"            // a mass loss is about to be held
	BuilderHeld           Point = "builder.held"            // the hold is on the log
	BuilderCheckpointPart Point = "builder.checkpoint-part" // a part of a checkpoint is about to be written
	BuilderCheckpointed   Point = "builder.checkpointed"    // a checkpoint is durable, no manifest names it

	WatcherBegun        Point = "watcher.begun"        // a session is begun, nothing is listed
	WatcherListing      Point = "watcher.listing"      // a part of what differs is about to be sent
	WatcherListed       Point = "watcher.listed"       // all of it is on the log, the listing is not closed
	WatcherAlive        Point = "watcher.alive"        // the listing is closed, or the session has said that it lives
	WatcherSend         Point = "watcher.send"         // changes are about to be sent
	WatcherBatch        Point = "watcher.batch"        // a part of a change set is about to be sent
	WatcherAcknowledged Point = "watcher.acknowledged" // the log has the changes

	FrontendReceived  Point = "frontend.received"  // there is a newer version, it is not served
	FrontendPersist   Point = "frontend.persist"   // what is served is about to be written to the own store
	FrontendPersisted Point = "frontend.persisted" // it is written
	FrontendPush      Point = "frontend.push"      // a response is about to be sent
)

// Points are all of them.
func Points() []Point {
	return []Point{
		BuilderLeads, BuilderFolded, BuilderPublish, BuilderPublished, BuilderFile, BuilderFiled,
		BuilderAcknowledge, BuilderAcknowledged, BuilderBase, BuilderSegment, BuilderHold, BuilderHeld,
		BuilderCheckpointPart, BuilderCheckpointed,
		WatcherBegun, WatcherListing, WatcherListed, WatcherAlive, WatcherSend, WatcherBatch, WatcherAcknowledged,
		FrontendReceived, FrontendPersist, FrontendPersisted, FrontendPush,
	}
}
