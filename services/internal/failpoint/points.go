// Package failpoint lets a test kill a process at one step of its work, to check
// that the mesh recovers from the state that the process leaves. Programs built
// with the tag faults obey the environment variable MESHLOG_FAIL_AT; in all other
// programs At does nothing.
package failpoint

import "slices"

// Point is a step of a process: the role, or file for any of them, a dot, and the step.
type Point string

var points []Point

func point(name string) Point {
	points = append(points, Point(name))
	return Point(name)
}

// Points returns all points.
func Points() []Point { return slices.Clone(points) }

// The steps at which a process can be killed.
var (
	BuilderLeads          = point("builder.leads")           // the builder holds the lease and has done nothing yet
	BuilderFolded         = point("builder.folded")          // a record is folded, in memory
	BuilderPublish        = point("builder.publish")         // before a version is published
	BuilderPublished      = point("builder.published")       // the version is on the chain but not in the file
	BuilderFile           = point("builder.file")            // before version, fold and cursor are written to the file
	BuilderFiled          = point("builder.filed")           // they are in the file
	BuilderAcknowledge    = point("builder.acknowledge")     // before the builder acknowledges its cursor to the log
	BuilderAcknowledged   = point("builder.acknowledged")    // the cursor is acknowledged
	BuilderBase           = point("builder.base")            // the base of a segment is durable, no segment names it
	BuilderSegment        = point("builder.segment")         // the segment is on the log
	BuilderHold           = point("builder.hold")            // before a mass loss is held
	BuilderHeld           = point("builder.held")            // the hold is on the log
	BuilderCheckpointPart = point("builder.checkpoint-part") // before a part of a checkpoint is written
	BuilderCheckpointed   = point("builder.checkpointed")    // a checkpoint is durable, no manifest names it

	WatcherBegun        = point("watcher.begun")        // a session has begun, nothing is listed
	WatcherListing      = point("watcher.listing")      // before a part of a listing's differences is sent
	WatcherListed       = point("watcher.listed")       // all differences are on the log, the listing is not closed
	WatcherAlive        = point("watcher.alive")        // the listing is closed, or a sign of life was sent
	WatcherSend         = point("watcher.send")         // before changes are sent
	WatcherBatch        = point("watcher.batch")        // before a part of a change set is sent
	WatcherAcknowledged = point("watcher.acknowledged") // the changes are on the log

	FrontendReceived  = point("frontend.received")  // a newer version has arrived but is not served
	FrontendPersist   = point("frontend.persist")   // before the served version is written to the frontend's file
	FrontendPersisted = point("frontend.persisted") // it is written
	FrontendPush      = point("frontend.push")      // before a response is sent
)

// The steps of a request for a private key (KEY-3). The first words of their names say
// so: tests reach them by a certificate that is new.
var (
	FrontendKeyAsk      = point("frontend.key-ask")      // before the frontend asks a watcher
	FrontendKeyAnswered = point("frontend.key-answered") // an answer with keys has come, no file has them
	FrontendKeySealed   = point("frontend.key-sealed")   // the sealed file has the key, the memory does not
	FrontendKeyKept     = point("frontend.key-kept")     // the memory has it too, no stream knows
	FrontendKeyGiven    = point("frontend.key-given")    // a proxy was sent it, the audit has no record

	WatcherKeyAsked    = point("watcher.key-asked")    // a request is opened, the source is not read
	WatcherKeyRead     = point("watcher.key-read")     // the key is in memory, the answer is not sealed
	WatcherKeyAnswer   = point("watcher.key-answer")   // before the sealed answer is sent
	WatcherKeyAnswered = point("watcher.key-answered") // the client of the bus has the answer
)

// The steps of any file that replaces another as one, such as the sealed file of a key.
var (
	FileBegun   = point("file.begun")   // a part of the temporary file is written
	FileWritten = point("file.written") // all of it is written and synced, it has not its place
	FilePlaced  = point("file.placed")  // it has its place, the directory is not synced
)
