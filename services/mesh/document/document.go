// Package document turns documents of files into objects of the kinds that
// meshlog knows: it finds the kind and decodes the payload, whatever its form.
// For a document that it cannot use, it reports the line, the reason and the
// remedy.
//
// It is pure.
package document

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
)

// defaultNamespace holds the namespaced objects that name no namespace.
const defaultNamespace = "default"

// Object is the object that a document holds.
type Object struct {
	Kind      *kind.Kind // nil: it is not known which object this is
	Namespace string     // empty if the kind has none
	Name      string
	// Message has a payload type of the kind (kind.Kind.TypeOf); nil with a problem.
	Message proto.Message
	// Foreign reports that meshlog does not take the document's kind from
	// files: no correction of the document is to be expected.
	Foreign bool
}

// Read decodes a document. It returns no Message with a problem, and no Kind
// unless it is known which object is broken.
func Read(d *manifest.Document) (Object, *problem.Diagnostic) {
	if d.Err != nil && (d.Kind == "" || d.Metadata.Name == "") {
		return Object{}, d.Err
	}
	group, version := "", d.APIVersion
	if g, v, ok := strings.Cut(d.APIVersion, "/"); ok {
		group, version = g, v
	}
	if k, ok := kind.ByName(d.Kind); ok && (k.ClusterOnly || k.Form == kind.Produced) && k.Group == group { // in any version
		return Object{Foreign: true}, withheld(k, d)
	}
	k, ok := kind.ByGVK(group, version, d.Kind)
	if !ok {
		return unknown(d, group)
	}
	o := Object{Kind: k, Namespace: d.Metadata.Namespace, Name: d.Metadata.Name}
	switch {
	case k.Namespaced && o.Namespace == "":
		o.Namespace = defaultNamespace
	case !k.Namespaced && o.Namespace != "":
		return Object{}, invalid(d, "metadata.namespace", "a "+k.DocumentKind()+" has no namespace", "leave the namespace out")
	}
	bad := inlineKey(d)
	if bad == nil {
		o.Message, bad = decode(k, d)
	}
	return o, bad
}

func invalid(d *manifest.Document, field, reason, advice string) *problem.Diagnostic {
	return &problem.Diagnostic{Severity: problem.Error, Code: "invalid", Line: d.Line, Field: field, Reason: reason, Advice: advice}
}

// inlineKey refuses a document that holds a private key. It runs before all
// other checks, because their messages could quote the key.
func inlineKey(d *manifest.Document) *problem.Diagnostic {
	e := invalid(d, "", "holds a private key, which every reader of the log could read; give the key to proxies as a file, and name that file here",
		"replace the key: it is no longer secret")
	if d.Err != nil {
		if keymaterial.In(d.Text()) != "" {
			return e
		}
		return nil
	}
	if keymaterial.In(d.Object) == "" {
		return nil
	}
	n := 0
	for line := range bytes.Lines(d.Object) { // each holds one value
		if n++; keymaterial.In(line) != "" {
			e.Field, e.Line = d.PlaceInObject(n)
			break
		}
	}
	if keymaterial.In([]byte(e.Field)) != "" { // as the key of a map
		e.Field, _, _ = strings.Cut(e.Field, `["`)
	}
	return e
}

// FirstProblem returns the line of the first field that makes the object
// invalid; if it is valid, the line where it begins.
func FirstProblem(d *manifest.Document, o Object) int {
	if found := o.Kind.Validate(o.Namespace, o.Message); len(found) > 0 && found[0].Severity == problem.Error {
		return d.FieldLine(found[0].Field)
	}
	return d.Line
}

func decode(k *kind.Kind, d *manifest.Document) (proto.Message, *problem.Diagnostic) {
	if d.Err != nil {
		return nil, d.Err
	}
	var m proto.Message
	var err error
	switch k.Form {
	case kind.Spec:
		if unknown := d.Unknown(); unknown != nil {
			return nil, unknown
		}
		if m, err = k.DecodeJSON(d.Spec); err == nil {
			m, err = k.Annotated(m, d.Metadata.Annotations)
		}
	case kind.Whole:
		m, err = validate.FromObject(d.Object)
	case kind.Converted:
		m, err = kubeconv.FromJSON(k, d.Object)
	}
	if err != nil {
		return nil, located(k, d, err)
	}
	return m, nil
}

// located returns err, an error of the spec or of the object as JSON, with the
// line in the file.
func located(k *kind.Kind, d *manifest.Document, err error) *problem.Diagnostic {
	e := invalid(d, "spec", err.Error(), "see this kind in its API reference")
	found, ok := errors.AsType[*problem.Diagnostic](err)
	if !ok {
		return e
	}
	e.Reason, e.Advice = found.Reason, cmp.Or(found.Advice, e.Advice)
	switch {
	case k.Form == kind.Spec:
		e.Field, e.Line = d.Place(found.Line)
	case found.Line > 0:
		e.Field, e.Line = d.PlaceInObject(found.Line)
	default:
		e.Field = found.Field
		if e.Field != "" {
			e.Line = d.FieldLine(e.Field)
		}
	}
	return e
}

// withheld refuses a kind that is not taken from files: a Secret becomes a
// reference, only the ConfigMaps of clusters that are named are taken, and others
// are made by processes of meshlog.
func withheld(k *kind.Kind, d *manifest.Document) *problem.Diagnostic {
	if k.Form == kind.Produced {
		return foreign(d, problem.Error, "produced", "a "+d.Kind+" is made by meshlog, and never read from a file", "remove it")
	}
	if d.Kind == "Secret" {
		return foreign(d, problem.Error, "secret", "a Secret does not go on the log, whose readers could all read the key",
			"put its files into the directory of --certificates, or give keys to proxies as files")
	}
	return foreign(d, problem.Warning, "unknown-kind", "meshlog does not use a "+d.Kind+" of a file", "leave it if it is meant for other programs")
}

func foreign(d *manifest.Document, severity problem.Severity, code, reason, advice string) *problem.Diagnostic {
	return &problem.Diagnostic{
		Severity: severity, Code: code, Line: d.Line, Field: "kind", Reason: reason, Advice: advice, Effect: "the object has no effect",
		Key: ident.Key{Kind: d.Kind, Namespace: d.Metadata.Namespace, Name: d.Metadata.Name},
	}
}

// unknown refuses a kind that is not in the table. Either the document is for
// another program, or it is ours with an error in its kind or apiVersion.
func unknown(d *manifest.Document, group string) (Object, *problem.Diagnostic) {
	reason := fmt.Sprintf("meshlog does not know apiVersion %s, kind %s", d.APIVersion, d.Kind)
	bad := func(advice string) (Object, *problem.Diagnostic) {
		e := invalid(d, "kind", reason, advice)
		e.Code = "unknown-kind"
		return Object{}, e
	}
	var names, groups []string
	for _, k := range kind.All() {
		switch {
		case k.Form == kind.Produced:
			continue // a document cannot hold one
		case k.DocumentKind() == d.Kind && (k.Group == group || !isCommon(k)):
			return bad("write apiVersion: " + k.APIVersion())
		case k.Group == group:
			names = append(names, k.DocumentKind())
		}
		if k.Group != "" {
			groups = append(groups, k.Group)
		}
	}
	if len(names) > 0 && !isKubernetes(group) {
		return bad("of this group use " + strings.Join(names, ", "))
	}
	slices.Sort(groups)
	return Object{Foreign: true}, foreign(d, problem.Warning, "unknown-kind", reason,
		"leave it if it is meant for other programs; meshlog reads Kubernetes' core and "+strings.Join(slices.Compact(groups), ", "))
}

// isCommon reports whether other groups have a kind of this name too.
func isCommon(k *kind.Kind) bool { return isKubernetes(k.Group) || k.Name == "Gateway" }

func isKubernetes(group string) bool { return group == "" || strings.HasSuffix(group, ".k8s.io") }
