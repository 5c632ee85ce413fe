// Package document turns documents of files into objects of the kinds that
// meshlog knows: it finds the kind and decodes the payload, whatever its form,
// and says of what it cannot use on which line and why.
//
// It is pure.
package document

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/mesh/manifest"
)

// defaultNamespace is that of a namespaced object that names none.
const defaultNamespace = "default"

// Object is a document as an object.
type Object struct {
	Kind      *kind.Kind
	Namespace string // empty where the kind has none
	Name      string
	// Message is what the document says, of the kind's payload type; nil with
	// an error.
	Message proto.Message
}

// ForeignError says that a document is of a kind that meshlog does not take
// in, and why: it is nothing to wait for.
type ForeignError struct {
	// Secret says that it must not be here.
	Secret         bool
	Reason, Advice string
}

// Error is the reason.
func (e *ForeignError) Error() string { return e.Reason }

// Read decodes a document. The error is a *ForeignError, or a *manifest.Error;
// with that, Kind tells whether it is known which object is broken.
func Read(d *manifest.Document) (Object, error) {
	if d.Err != nil && (d.Kind == "" || d.Metadata.Name == "") {
		return Object{}, d.Err
	}
	group, version := "", d.APIVersion
	if g, v, ok := strings.Cut(d.APIVersion, "/"); ok {
		group, version = g, v
	}
	if k, ok := kind.ByName(d.Kind); ok && k.ClusterOnly && k.Group == group { // in whatever version
		return Object{}, withheld(d.Kind)
	}
	k, ok := kind.ByGVK(group, version, d.Kind)
	if !ok {
		return Object{}, unknown(d, group)
	}
	o := Object{Kind: k, Namespace: d.Metadata.Namespace, Name: d.Metadata.Name}
	switch {
	case k.Namespaced && o.Namespace == "":
		o.Namespace = defaultNamespace
	case !k.Namespaced && o.Namespace != "":
		return Object{}, &manifest.Error{
			Line: d.Line, Field: "metadata.namespace", Reason: "a " + k.DocumentKind() + " has no namespace", Advice: "leave the namespace out",
		}
	}
	bad := inlineKey(d)
	if bad == nil {
		o.Message, bad = decode(k, d)
	}
	if bad != nil {
		return o, bad
	}
	return o, nil
}

// inlineKey refuses a document that holds a private key, before anything else is
// said of it that might quote it: the log is no place for keys.
func inlineKey(d *manifest.Document) *manifest.Error {
	e := &manifest.Error{
		Line: d.Line, Reason: "holds a private key, and whoever reads the log would read it; give it to proxies as a file, and name that here",
		Advice: "replace the key: it has been where it should not be",
	}
	if d.Err != nil {
		if validate.HasPrivateKey(d.Text()) {
			return e
		}
		return nil
	}
	if !validate.HasPrivateKey(d.Object) {
		return nil
	}
	n := 0
	for line := range bytes.Lines(d.Object) { // each has one value
		if n++; validate.HasPrivateKey(line) {
			e.Field, e.Line = d.PlaceInObject(n)
			break
		}
	}
	if validate.HasPrivateKey([]byte(e.Field)) { // as the key of a map
		e.Field, _, _ = strings.Cut(e.Field, `["`)
	}
	return e
}

// FirstProblem is the line of the first field of the object that makes it
// invalid; where there is none, that of the object.
func FirstProblem(d *manifest.Document, o Object) int {
	for _, p := range o.Kind.Validate(o.Message) {
		if !p.Warning {
			return d.FieldLine(p.Field)
		}
	}
	return d.Line
}

func decode(k *kind.Kind, d *manifest.Document) (proto.Message, *manifest.Error) {
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
		m, err = k.DecodeJSON(d.Spec)
	case kind.Whole:
		m, err = validate.FromObject(d.Object)
	case kind.Converted:
		m, err = kubeconv.FromJSON(k, d.Object)
	}
	if err != nil {
		return nil, located(d, err)
	}
	return m, nil
}

// located is err with the line in the file.
func located(d *manifest.Document, err error) *manifest.Error {
	e := &manifest.Error{Line: d.Line, Field: "spec", Reason: err.Error(), Advice: "see this kind in its API reference"}
	var inSpec *kind.SyntaxError
	var inObject *kubeconv.Error
	switch {
	case errors.As(err, &inSpec):
		e.Reason = inSpec.Reason
		e.Field, e.Line = d.Place(inSpec.Line)
	case errors.As(err, &inObject) && inObject.Line > 0:
		e.Reason = inObject.Reason
		e.Field, e.Line = d.PlaceInObject(inObject.Line)
	case errors.As(err, &inObject):
		e.Reason, e.Field = inObject.Reason, inObject.Field
		if e.Field != "" {
			e.Line = d.FieldLine(e.Field)
		}
	}
	return e
}

// withheld is a document of a kind that is taken from clusters alone: there a
// Secret becomes a reference, and of ConfigMaps only those are taken that are
// named.
func withheld(document string) *ForeignError {
	if document == "Secret" {
		return &ForeignError{
			Secret: true, Reason: "a Secret does not go on the log: whoever reads the log would read the key",
			Advice: "remove it from this directory; keys are given to proxies as files so far",
		}
	}
	return &ForeignError{
		Reason: "a " + document + " of a file means nothing to meshlog",
		Advice: "leave it if it is meant for others",
	}
}

// unknown is a document of a kind that is not in the table: one of others that
// happens to lie here, or one of ours with an error in its kind or apiVersion.
func unknown(d *manifest.Document, group string) error {
	reason := fmt.Sprintf("apiVersion %s, kind %s is not known here", d.APIVersion, d.Kind)
	var names []string
	for _, k := range kind.All() {
		switch {
		case k.DocumentKind() == d.Kind && (k.Group == group || !isCommon(k)):
			return &manifest.Error{Line: d.Line, Field: "kind", Reason: reason, Advice: "write apiVersion: " + k.APIVersion()}
		case k.Group == group:
			names = append(names, k.DocumentKind())
		}
	}
	if len(names) > 0 && !isKubernetes(group) {
		return &manifest.Error{Line: d.Line, Field: "kind", Reason: reason, Advice: "of this group use " + strings.Join(names, ", ")}
	}
	return &ForeignError{Reason: reason, Advice: "leave it if it is meant for others; meshlog reads Kubernetes' core and " + groups()}
}

// isCommon says that other groups have kinds of this name, too.
func isCommon(k *kind.Kind) bool { return isKubernetes(k.Group) || k.Name == "Gateway" }

func isKubernetes(group string) bool { return group == "" || strings.HasSuffix(group, ".k8s.io") }

func groups() string {
	var names []string
	for _, k := range kind.All() {
		if k.Group != "" {
			names = append(names, k.Group)
		}
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), ", ")
}
