package events

import (
	"errors"
	"fmt"
	"strings"

	"meshlog.dev/proto/ident"
)

// Subject is the subject of an event, without the prefix "meshlog.ev.<domain>."
// that a driver adds (see In):
//
//	<source>.<instance>.<kind>.<namespace>   objects; no namespace is "_"
//	<source>.<instance>._ctl                 begin and alive of a shard
//	_builder.segment  _builder.overlay       records of the builder
//	_operator.overlay                        records of operators
//	_operator.control                        signed begin and alive of an operator, of any shard
//
// In a token [A-Za-z0-9_-] stand for themselves, every other byte is =HH
// (upper-case hex), an empty token is "=", and a first "_" of a name is
// escaped, so that no name equals a reserved token. Each meaning has one
// subject, and each subject one meaning. The object's name is in the event, not
// in the subject, because subjects cost the server memory.
type Subject string

// Subjects outside of any shard.
const (
	SegmentSubject         Subject = "_builder.segment"
	BuilderOverlaySubject  Subject = "_builder.overlay"
	OperatorOverlaySubject Subject = "_operator.overlay"
	OperatorControlSubject Subject = "_operator.control"
)

// AnyControlSubject is the wildcard for the ControlSubject of every shard.
const AnyControlSubject Subject = "*.*." + controlToken

const (
	// subjectPrefix begins every subject on the bus.
	subjectPrefix = "meshlog.ev."
	controlToken  = "_ctl"
	noNamespace   = "_"
	anyToken      = "*"
	// maxSubject leaves room for the rest of a control line of the bus, which
	// is limited to 4096 bytes.
	maxSubject = 1024
)

// ObjectSubject returns the subject of the objects of k's shard, kind and
// namespace.
func ObjectSubject(k ident.Key) Subject {
	return Subject(Token(k.Source) + "." + Token(k.Instance) + "." + Token(k.Kind) + "." + namespaceToken(k.Namespace))
}

func namespaceToken(namespace string) string {
	if namespace == "" {
		return noNamespace
	}
	return Token(namespace)
}

// Objects selects objects of a source by the names in their subjects. A nil name
// selects all.
type Objects struct {
	Source                    string
	Instance, Kind, Namespace *string
}

// Subjects returns the subject of the objects that o selects, or the wildcard for
// their subjects.
func (o Objects) Subjects() Subject {
	tokens := []string{Token(o.Source), anyToken, anyToken, anyToken}
	if o.Instance != nil {
		tokens[1] = Token(*o.Instance)
	}
	if o.Kind != nil {
		tokens[2] = Token(*o.Kind)
	}
	if o.Namespace != nil {
		tokens[3] = namespaceToken(*o.Namespace)
	}
	return Subject(strings.Join(tokens, "."))
}

// ControlSubject returns the subject of begin and alive of a shard.
func ControlSubject(s ident.Shard) Subject {
	return Subject(Token(s.Source) + "." + Token(s.Instance) + "." + controlToken)
}

// ShardSubjects returns the wildcard for all subjects of a shard.
func ShardSubjects(s ident.Shard) Subject {
	return Subject(Token(s.Source) + "." + Token(s.Instance) + ".>")
}

// SourceControlSubjects returns the wildcard for the ControlSubject of all shards of a
// source.
func SourceControlSubjects(source string) Subject {
	return Subject(Token(source) + "." + anyToken + "." + controlToken)
}

// SourceSubjects returns the wildcard for all subjects of all shards of a source.
func SourceSubjects(source string) Subject { return Subject(Token(source) + ".*.>") }

// SubjectOf returns the subject of e. It fails for an event without a body, and
// for one whose names make a subject that is too long for a server.
//
// Holds, quarantines and rollouts are records of the builder; all other overlays are
// records of operators, and so are what they order about a rollout, and the removal of a
// hold: to approve a hold is to remove it. A begin or an alive with a signature is an operator's: one of a shard that has
// a watcher has a subject that watchers do not share.
func SubjectOf(e Event) (Subject, error) {
	var s Subject
	switch b := e.Body.(type) {
	case *Object:
		s = ObjectSubject(b.Key)
	case *Begin:
		s = controlOf(e, b.Shard)
	case *Alive:
		s = controlOf(e, b.Shard)
	case *Overlay:
		if s = OperatorOverlaySubject; b.OfBuilder() {
			s = BuilderOverlaySubject
		}
	case *Segment:
		s = SegmentSubject
	default:
		return "", errors.New("body: is missing")
	}
	if len(s) > maxSubject {
		return "", fmt.Errorf("key: source, instance, kind and namespace make a subject of %d bytes; at most %d are allowed", len(s), maxSubject)
	}
	return s, nil
}

func controlOf(e Event, sh ident.Shard) Subject {
	if e.Signature != nil && sh.Source != ident.API {
		return OperatorControlSubject
	}
	return ControlSubject(sh)
}

// In returns the full subject on the bus in the mesh called domain.
func (s Subject) In(domain string) string {
	return subjectPrefix + Token(domain) + "." + string(s)
}

// AllSubjects returns the wildcard for the log of the mesh called domain.
func AllSubjects(domain string) string {
	return Subject(">").In(domain)
}

const upperHex = "0123456789ABCDEF"

// Token encodes any name as one token; see Subject. The token is valid in a NATS
// subject and as the name of a consumer.
func Token(name string) string {
	if name == "" {
		return "="
	}
	var b strings.Builder
	for i := range len(name) {
		c := name[i]
		if plain(c) && (i > 0 || c != '_') {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('=')
		b.WriteByte(upperHex[c>>4])
		b.WriteByte(upperHex[c&0xf])
	}
	return b.String()
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}
