package natslog

import (
	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
)

// ShardPermissions returns the subjects that a client publishes to when it
// opens the log of one shard, appends there and reads that shard. It also
// listens to its inbox.
func ShardPermissions(domain string, s ident.Shard) []string {
	return subjectPermissions(events.ShardSubjects(s).In(domain))
}

// SourcePermissions returns ShardPermissions for all instances of a source.
func SourcePermissions(domain, source string) []string {
	return subjectPermissions(events.SourceSubjects(source).In(domain))
}

func subjectPermissions(own string) []string {
	return []string{own, jsapi.StreamInfo + Stream, jsapi.DirectGet + Stream + "." + own}
}

// ReadPermissions returns the subjects to open, read and follow the log.
func ReadPermissions() []string {
	return []string{
		jsapi.StreamInfo + Stream, jsapi.MessageGet + Stream,
		jsapi.ConsumerCreate + Stream + ".>", jsapi.ConsumerNext + Stream + ".*",
		jsapi.ConsumerReset + Stream + ".*", jsapi.ConsumerDelete + Stream + ".*",
	}
}

// CreatePermissions returns the subjects for EnsureStream.
func CreatePermissions() []string {
	return []string{jsapi.StreamInfo + Stream, jsapi.StreamCreate + Stream}
}
