package natslog

import (
	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
)

// ShardPermissions returns the subjects that a client publishes to when it
// opens the log of one shard, appends there and reads that shard. It also
// listens to its inbox.
func ShardPermissions(o Options, s ident.Shard) []string {
	return subjectPermissions(o.withDefaults(), events.ShardSubjects(s))
}

// SourcePermissions returns ShardPermissions for all instances of a source.
func SourcePermissions(o Options, source string) []string {
	return subjectPermissions(o.withDefaults(), events.SourceSubjects(source))
}

func subjectPermissions(o Options, s events.Subject) []string {
	own := s.In(o.Domain)
	return []string{own, jsapi.StreamInfo + o.Stream, jsapi.DirectGet + o.Stream + "." + own}
}

// ReadPermissions returns the subjects to open, read and follow the log.
func ReadPermissions(o Options) []string {
	o = o.withDefaults()
	return []string{
		jsapi.StreamInfo + o.Stream, jsapi.MessageGet + o.Stream,
		jsapi.ConsumerCreate + o.Stream + ".>", jsapi.ConsumerNext + o.Stream + ".*",
		jsapi.ConsumerReset + o.Stream + ".*", jsapi.ConsumerDelete + o.Stream + ".*",
	}
}

// CreatePermissions returns the subjects for EnsureStream.
func CreatePermissions(o Options) []string {
	o = o.withDefaults()
	return []string{jsapi.StreamInfo + o.Stream, jsapi.StreamCreate + o.Stream}
}

// UpdatePermissions returns the subjects to change the stream's settings.
func UpdatePermissions(o Options) []string {
	o = o.withDefaults()
	return []string{jsapi.StreamInfo + o.Stream, jsapi.StreamUpdate + o.Stream}
}
