package events

import (
	"errors"
	"fmt"
	"strings"

	"meshlog.dev/proto/ident"
)

// Subject is where an event lies on the log, without the prefix
// "meshlog.ev.<domain>." that a driver puts before it (see In):
//
//	<source>.<instance>.<kind>.<namespace>   objects; no namespace is "_"
//	<source>.<instance>._ctl                 begin and alive of a shard
//	_builder.segment  _builder.overlay       the builder's word
//	_operator.overlay                        an operator's word
//
// In a token [A-Za-z0-9_-] stand for themselves, every other byte is =HH
// (upper-case hex), an empty token is "=", and a first "_" of a name is
// escaped, so that names never meet reserved tokens. That makes one subject
// for one meaning and back. The object's name is in the event, not in the
// subject: subjects cost the server memory.
type Subject string

// The subjects that belong to no shard.
const (
	SegmentSubject         Subject = "_builder.segment"
	BuilderOverlaySubject  Subject = "_builder.overlay"
	OperatorOverlaySubject Subject = "_operator.overlay"
)

// AnyControlSubject is the wildcard that covers the ControlSubject of every
// shard.
const AnyControlSubject Subject = "*.*." + controlToken

const (
	// subjectPrefix is before every subject on the bus.
	subjectPrefix = "meshlog.ev."
	controlToken  = "_ctl"
	noNamespace   = "_"
	// maxSubject leaves room for what the bus puts around a subject in a
	// control line of 4096 bytes.
	maxSubject = 1024
)

// ObjectSubject is where the objects of k's shard, kind and namespace lie.
func ObjectSubject(k ident.Key) Subject {
	namespace := noNamespace
	if k.Namespace != "" {
		namespace = Token(k.Namespace)
	}
	return Subject(Token(k.Source) + "." + Token(k.Instance) + "." + Token(k.Kind) + "." + namespace)
}

// ControlSubject is where begin and alive of a shard lie.
func ControlSubject(s ident.Shard) Subject {
	return Subject(Token(s.Source) + "." + Token(s.Instance) + "." + controlToken)
}

// ShardSubjects is the wildcard that covers everything of a shard.
func ShardSubjects(s ident.Shard) Subject {
	return Subject(Token(s.Source) + "." + Token(s.Instance) + ".>")
}

// SourceSubjects is the wildcard that covers everything of all shards of a
// source.
func SourceSubjects(source string) Subject { return Subject(Token(source) + ".*.>") }

// SubjectOf is where e lies. It fails for an event without a body, and for one
// whose names make a subject that no server takes.
//
// Holds and quarantines are the builder's word, everything else said by
// overlays is an operator's, their removal included: approving one removes it.
func SubjectOf(e Event) (Subject, error) {
	var s Subject
	switch b := e.Body.(type) {
	case *Object:
		s = ObjectSubject(b.Key)
	case *Begin:
		s = ControlSubject(b.Shard)
	case *Alive:
		s = ControlSubject(b.Shard)
	case *Overlay:
		if s = OperatorOverlaySubject; b.Kind == ident.Hold || b.Kind == ident.Quarantine {
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

// SubjectClass says which form of the grammar a subject has.
type SubjectClass uint8

// The forms of subjects.
const (
	ObjectClass   SubjectClass = iota + 1 // objects of a shard, kind and namespace
	ControlClass                          // begin and alive of a shard
	BuilderClass                          // SegmentSubject, BuilderOverlaySubject
	OperatorClass                         // OperatorOverlaySubject
)

// SubjectParts is a subject taken apart.
type SubjectParts struct {
	Class     SubjectClass
	Shard     ident.Shard // of ObjectClass and ControlClass
	Kind      string      // of ObjectClass
	Namespace string      // of ObjectClass
}

// ParseSubject takes s apart. It accepts exactly what the functions above
// return, so one thing never has two subjects.
func ParseSubject(s Subject) (SubjectParts, error) {
	switch s {
	case SegmentSubject, BuilderOverlaySubject:
		return SubjectParts{Class: BuilderClass}, nil
	case OperatorOverlaySubject:
		return SubjectParts{Class: OperatorClass}, nil
	}
	tokens := strings.Split(string(s), ".")
	control := len(tokens) == 3 && tokens[2] == controlToken
	if !control && len(tokens) != 4 {
		return SubjectParts{}, fmt.Errorf("subject %q: want <source>.<instance>.<kind>.<namespace> or <source>.<instance>.%s", s, controlToken)
	}
	names := tokens
	if control || tokens[3] == noNamespace {
		names = tokens[:len(tokens)-1]
	}
	var n [4]string
	for i, token := range names {
		var err error
		if n[i], err = ParseToken(token); err != nil {
			return SubjectParts{}, fmt.Errorf("subject %q: token %q: %w", s, token, err)
		}
	}
	shard := ident.Shard{Source: n[0], Instance: n[1]}
	if control {
		return SubjectParts{Class: ControlClass, Shard: shard}, nil
	}
	if len(names) == 4 && n[3] == "" {
		return SubjectParts{}, fmt.Errorf("subject %q: no namespace is written %q", s, noNamespace)
	}
	return SubjectParts{Class: ObjectClass, Shard: shard, Kind: n[2], Namespace: n[3]}, nil
}

// In is the whole subject on a bus that carries the mesh called domain.
func (s Subject) In(domain string) string {
	return subjectPrefix + Token(domain) + "." + string(s)
}

// CutDomain takes apart what In returned.
func CutDomain(full string) (domain string, s Subject, err error) {
	rest, ok := strings.CutPrefix(full, subjectPrefix)
	token, subject, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 {
		return "", "", fmt.Errorf("subject %q: want %s<domain>.<subject>", full, subjectPrefix)
	}
	if domain, err = ParseToken(token); err != nil {
		return "", "", fmt.Errorf("subject %q: domain %q: %w", full, token, err)
	}
	return domain, Subject(subject), nil
}

// AllSubjects is the wildcard that covers the log of the mesh called domain.
func AllSubjects(domain string) string {
	return Subject(">").In(domain)
}

const upperHex = "0123456789ABCDEF"

// Token makes one token of any name, as Subject says. It is a valid token of a
// NATS subject, and a valid name of a consumer.
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

// ParseToken is the reverse of Token, and refuses what Token does not make.
func ParseToken(token string) (string, error) {
	if token == "=" {
		return "", nil
	}
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		c := token[i]
		if c != '=' {
			b.WriteByte(c)
			continue
		}
		if i+2 >= len(token) {
			return "", errors.New("ends within an escape")
		}
		hi := strings.IndexByte(upperHex, token[i+1])
		lo := strings.IndexByte(upperHex, token[i+2])
		if hi < 0 || lo < 0 {
			return "", errors.New("has an escape that is not =HH in upper-case hex")
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	if Token(b.String()) != token {
		return "", errors.New("is reserved, or not in its one escaped form")
	}
	return b.String(), nil
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}
