package file

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/internal/kind"
	"meshlog.dev/services/internal/manifest"
	"meshlog.dev/services/internal/model"
	"meshlog.dev/services/watcher"
)

// defaultNamespace is that of a namespaced object that names none.
const defaultNamespace = "default"

// key names an object of the directory.
type key struct{ kind, namespace, name string }

func (k key) String() string {
	if k.namespace == "" {
		return k.kind + " " + k.name
	}
	return k.kind + " " + k.namespace + "/" + k.name
}

// entry is an object in a file.
type entry struct {
	key    key
	line   int
	object watcher.Object // without Observed
}

// content is what a file says.
type content struct {
	entries []entry
	// broken says that there is a document of which it is not known which
	// object it is.
	broken   bool
	problems []model.Diagnostic
}

// parse reads a file. It is pure.
func parse(name string, data []byte) content {
	p := parser{name: origin(name)}
	if len(data) == 0 {
		p.unclear("unreadable", &manifest.Error{
			Line: 1, Reason: "the file is empty, as one that is being written",
			Advice: "remove it, or write a comment into it, if it is meant to hold nothing",
		})
		return p.content
	}
	for _, d := range manifest.Parse(data) {
		p.document(&d)
	}
	return p.content
}

// origin is the name of a file as people and the log see it.
func origin(name string) string { return strings.ToValidUTF8(filepath.ToSlash(name), "?") }

type parser struct {
	name string
	content
}

func (p *parser) document(d *manifest.Document) {
	if d.Err != nil && (d.Kind == "" || d.Metadata.Name == "") {
		p.unclear("syntax", d.Err)
		return
	}
	group, version, ok := strings.Cut(d.APIVersion, "/")
	if !ok {
		group, version = "", d.APIVersion
	}
	k, ok := kind.ByGVK(group, version, d.Kind)
	if !ok {
		p.unknown(d, group)
		return
	}
	of := key{k.Name, d.Metadata.Namespace, d.Metadata.Name}
	switch {
	case k.Namespaced && of.namespace == "":
		of.namespace = defaultNamespace
	case !k.Namespaced && of.namespace != "":
		p.unclear("invalid", &manifest.Error{
			Line: d.Line, Field: "metadata.namespace", Reason: "a " + k.Name + " has no namespace", Advice: "leave the namespace out",
		})
		return
	}
	if k.Only != "" && of.name != k.Only {
		p.warn("no-effect", of, d.Line, "metadata.name",
			fmt.Sprintf("the one %s that counts is named %q", k.Name, k.Only), "rename it, or remove it", "the object has no effect")
	}
	p.entries = append(p.entries, p.entry(k, of, d))
}

// entry decodes the object; one that cannot be decoded is offered as such, for
// it to keep its last good value and to be reported with it.
func (p *parser) entry(k *kind.Kind, of key, d *manifest.Document) entry {
	e := entry{key: of, line: d.Line, object: watcher.Object{
		Kind: of.kind, Namespace: of.namespace, Name: of.name, Created: d.Metadata.Created,
		Origin: p.origin(d.Line), Actor: "file",
	}}
	payload, bad := encode(k, d)
	if bad != nil {
		e.object.Origin = p.origin(bad.Line)
		payload = undecoded(d, bad)
	}
	e.object.Payload = payload
	sum := sha256.Sum256(append([]byte(payload.Type), payload.Bytes...))
	e.object.SourceVersion = hex.EncodeToString(sum[:6])
	return e
}

func encode(k *kind.Kind, d *manifest.Document) (events.Payload, *manifest.Error) {
	if d.Err != nil {
		return events.Payload{}, d.Err
	}
	m, err := k.DecodeJSON(d.Spec)
	if err != nil {
		e := &manifest.Error{Line: d.Line, Field: "spec", Reason: err.Error()}
		var syntax *kind.SyntaxError
		if errors.As(err, &syntax) {
			e.Reason = syntax.Reason
			e.Field, e.Line = d.Place(syntax.Line)
		}
		return events.Payload{}, e
	}
	b, err := k.Encode(m)
	if err != nil {
		return events.Payload{}, &manifest.Error{Line: d.Line, Field: "spec", Reason: err.Error()}
	}
	return events.Payload{Type: k.TypeURL, Bytes: b}, nil
}

// undecoded says no line, so that moving an object in its file changes
// nothing; the object's origin does.
func undecoded(d *manifest.Document, bad *manifest.Error) events.Payload {
	u := &registryv1.Undecoded{
		Data: d.Text(), MediaType: "application/yaml",
		Field: strings.ToValidUTF8(bad.Field, "?"), Error: strings.ToValidUTF8(bad.Reason, "?"),
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(u)
	if err != nil { // texts and bytes: it cannot be
		b = nil
	}
	return events.Payload{Type: kind.Undecoded, Bytes: b}
}

// unknown is a document of a kind that is not in the table: one of others that
// happens to lie here, or one of ours with an error in the name of its kind.
func (p *parser) unknown(d *manifest.Document, group string) {
	named, isName := kind.ByName(d.Kind)
	reason := fmt.Sprintf("apiVersion %s, kind %s is not known here", d.APIVersion, d.Kind)
	advice := "use one of " + known()
	ours := isName
	for _, k := range kind.All() {
		ours = ours || k.Group == group
	}
	if isName {
		advice = fmt.Sprintf("write apiVersion: %s", named.APIVersion())
	}
	if ours {
		p.unclear("unknown-kind", &manifest.Error{Line: d.Line, Field: "kind", Reason: reason, Advice: advice})
		return
	}
	p.warn("unknown-kind", key{d.Kind, d.Metadata.Namespace, d.Metadata.Name}, d.Line, "kind", reason, advice, "the object has no effect")
}

func known() string {
	var names []string
	for _, k := range kind.All() {
		names = append(names, k.APIVersion()+" "+k.Name)
	}
	return strings.Join(names, ", ")
}

func (p *parser) origin(line int) string { return fmt.Sprintf("%s:%d", p.name, line) }

// unclear is a problem in a document that may be any object's.
func (p *parser) unclear(code string, e *manifest.Error) {
	p.broken = true
	p.problems = append(p.problems, model.Diagnostic{
		Severity: model.Error, Code: code, Origin: p.origin(e.Line), Field: e.Field, Reason: e.Reason, Advice: e.Advice,
		Effect: "what the file held before stays; nothing of it is removed",
	})
}

func (p *parser) warn(code string, of key, line int, field, reason, advice, effect string) {
	p.problems = append(p.problems, model.Diagnostic{
		Severity: model.Warning, Code: code, Origin: p.origin(line), Field: field, Reason: reason, Advice: advice, Effect: effect,
		Key: model.Key{Kind: of.kind, Namespace: of.namespace, Name: of.name},
	})
}
