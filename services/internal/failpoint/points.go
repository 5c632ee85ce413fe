// Package failpoint lets a test kill a process at one step of its work, to check
// that the mesh recovers from the state that the process leaves. Programs built
// with the tag faults obey the environment variable MESHLOG_STOP_AT; in all other
// programs At does nothing.
package failpoint

// Point is a step of a process: the role, a dot, and the step.
type Point string

// The steps at which a process can be killed.
const (
	BuilderLeads          Point = "builder.leads"           // the builder holds the lease and has done nothing yet
	BuilderFolded         Point = "builder.folded"          // a record is folded, in memory
	BuilderPublish        Point = "builder.publish"         // before a version is published
	BuilderPublished      Point = "builder.published"       // the version is on the chain but not in the file
	BuilderFile           Point = "builder.file"            // before version, fold and cursor are written to the file
	BuilderFiled          Point = "builder.filed"           // they are in the file
	BuilderAcknowledge    Point = "builder.acknowledge"     // before the builder acknowledges its cursor to the log
	BuilderAcknowledged   Point = "builder.acknowledged"    // the cursor is acknowledged
	BuilderBase           Point = "builder.base"            // the base of a segment is durable, no segment names it
	BuilderSegment        Point = "builder.segment"         // the segment is on the log
	BuilderHold           Point = "builder.hold"            // before a mass loss is held
	BuilderHeld           Point = "builder.held"            // the hold is on the log
	BuilderCheckpointPart Point = "builder.checkpoint-part" // before a part of a checkpoint is written
	BuilderCheckpointed   Point = "builder.checkpointed"    // a checkpoint is durable, no manifest names it

	WatcherBegun        Point = "watcher.begun"        // a session has begun, nothing is listed
	WatcherListing      Point = "watcher.listing"      // before a part of a listing's differences is sent
	WatcherListed       Point = "watcher.listed"       // all differences are on the log, the listing is not closed
	WatcherAlive        Point = "watcher.alive"        // the listing is closed, or a sign of life was sent
	WatcherSend         Point = "watcher.send"         // before changes are sent
	WatcherBatch        Point = "watcher.batch"        // before a part of a change set is sent
	WatcherAcknowledged Point = "watcher.acknowledged" // the changes are on the log

	FrontendReceived  Point = "frontend.received"  // a newer version has arrived but is not served
	FrontendPersist   Point = "frontend.persist"   // before the served version is written to the frontend's file
	FrontendPersisted Point = "frontend.persisted" // it is written
	FrontendPush      Point = "frontend.push"      // before a response is sent
)

// Points returns all points.
func Points() []Point {
	return []Point{
		BuilderLeads, BuilderFolded, BuilderPublish, BuilderPublished, BuilderFile, BuilderFiled,
		BuilderAcknowledge, BuilderAcknowledged, BuilderBase, BuilderSegment, BuilderHold, BuilderHeld,
		BuilderCheckpointPart, BuilderCheckpointed,
		WatcherBegun, WatcherListing, WatcherListed, WatcherAlive, WatcherSend, WatcherBatch, WatcherAcknowledged,
		FrontendReceived, FrontendPersist, FrontendPersisted, FrontendPush,
	}
}
