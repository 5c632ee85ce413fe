package events

// Subject is where an event lies on the log, without the prefix
// "meshlog.ev.<domain>." that a driver puts before it:
//
//	<source>.<instance>.<kind>.<namespace>   objects; no namespace is "_"
//	<source>.<instance>._ctl                 begin and alive of a shard
//	_builder.segment  _builder.overlay       the builder's word
//	_operator.overlay                        an operator's word
//
// In a token [A-Za-z0-9_-] stand for themselves, every other byte is =HH
// (upper-case hex), an empty token is "=", and a first "_" of a name is
// escaped, so that names never meet reserved tokens. The object's name is in
// the event, not in the subject: subjects cost the server memory.
type Subject string

// The subjects that belong to no shard.
const (
	SegmentSubject         Subject = "_builder.segment"
	BuilderOverlaySubject  Subject = "_builder.overlay"
	OperatorOverlaySubject Subject = "_operator.overlay"
)
