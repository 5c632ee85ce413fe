// Package admission checks objects of Kubernetes before the API server stores them: a
// validating webhook with the validation of the fold and of `meshlog validate -f`.
//
// It needs neither the bus nor the world, so that it answers while both are away. What
// only several objects together show is left to the fold.
package admission

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/document"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/manifest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/trial"
)

// Review answers a request of the API server. The answer never repeats a private key.
func Review(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	allowed := &admissionv1.AdmissionResponse{UID: r.UID, Allowed: true}
	if r.Operation != admissionv1.Create && r.Operation != admissionv1.Update || r.SubResource != "" {
		return allowed
	}
	if r.Kind.Group == "" && r.Kind.Kind == "ConfigMap" {
		return reviewProbe(r)
	}
	object, err := fields(r.Object.Raw)
	if err != nil {
		return refusal(r, []problem.Diagnostic{{Severity: problem.Error, Reason: "is no object in JSON", Advice: "send it again"}})
	}
	if deleting(object) {
		return allowed // its finalizers must go, whatever else it has
	}
	problems := Problems(object)
	if len(problems) == 0 {
		return allowed
	}
	if old, err := fields(r.OldObject.Raw); err == nil && r.Operation == admissionv1.Update && same(old, object) {
		// Others must be able to change labels and finalizers of an object that was
		// invalid before.
		allowed.Warnings = warnings(problems, "unchanged, and so not refused: ")
		return allowed
	}
	if slices.ContainsFunc(problems, isError) {
		return refusal(r, problems)
	}
	allowed.Warnings = warnings(problems, "")
	return allowed
}

func isError(p problem.Diagnostic) bool { return p.Severity == problem.Error }

// judge is that of the fold in production.
var judge = fold.KindJudge{Trial: trial.Problems}

// lastApplied is the annotation with the object as `kubectl apply` got it. Watchers do
// not put it on the log.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Problems returns the problems of an object of Kubernetes, the worst first, by the code
// of `meshlog validate -f`.
func Problems(object map[string]any) []problem.Diagnostic {
	text, err := json.Marshal(offered(object))
	if err != nil {
		return []problem.Diagnostic{{Severity: problem.Error, Reason: err.Error(), Advice: "correct the object"}}
	}
	docs := manifest.Parse(text)
	if len(docs) != 1 {
		return []problem.Diagnostic{{Severity: problem.Error, Reason: "is no object", Advice: "correct it"}}
	}
	o, bad := document.Read(&docs[0])
	if bad != nil {
		return []problem.Diagnostic{*bad}
	}
	b, err := o.Kind.Encode(o.Message)
	if err != nil {
		return []problem.Diagnostic{{Severity: problem.Error, Field: "spec", Reason: err.Error(), Advice: "correct the object"}}
	}
	value := ident.Value{Type: o.Kind.TypeOf(o.Message), Bytes: b}
	if found, holds := keymaterial.Find(value); holds {
		return []problem.Diagnostic{keyIn(found.Field)}
	}
	if meta, _ := object["metadata"].(map[string]any); meta != nil {
		if annotations, _ := meta["annotations"].(map[string]any); annotations != nil {
			if text, _ := annotations[lastApplied].(string); keymaterial.In([]byte(text)) != "" {
				return []problem.Diagnostic{keyIn(`metadata.annotations["` + lastApplied + `"]`)}
			}
		}
	}
	key := ident.Key{Source: "kubernetes", Instance: "admission", Kind: o.Kind.Name, Namespace: o.Namespace, Name: o.Name}
	_, problems, _ := judge.Judge(key, value)
	slices.SortStableFunc(problems, func(a, b problem.Diagnostic) int { return int(b.Severity) - int(a.Severity) })
	return problems
}

func keyIn(field string) problem.Diagnostic {
	return problem.Diagnostic{
		Severity: problem.Error, Code: "invalid", Field: field, Reason: "holds a private key, which every reader of the log could read",
		Advice: "put the key into a Secret, name that here, and replace the key: it is no longer secret",
	}
}

// offered returns what a watcher reads of an object.
func offered(object map[string]any) map[string]any {
	out := map[string]any{}
	for field, value := range object {
		if field != "status" && field != "metadata" {
			out[field] = value
		}
	}
	from, _ := object["metadata"].(map[string]any)
	meta := map[string]any{}
	for _, field := range []string{"name", "namespace", "labels"} {
		if value, ok := from[field]; ok {
			meta[field] = value
		}
	}
	if meta["name"] == nil {
		meta["name"] = from["generateName"]
	}
	if annotations := annotationsOf(from); len(annotations) > 0 {
		meta["annotations"] = annotations
	}
	out["metadata"] = meta
	return out
}

func annotationsOf(meta map[string]any) map[string]any {
	all, _ := meta["annotations"].(map[string]any)
	out := map[string]any{}
	for name, value := range all {
		if name != lastApplied {
			out[name] = value
		}
	}
	return out
}

// same reports whether two states of an object are equal in what meshlog reads, labels
// apart, which make no object invalid.
func same(old, object map[string]any) bool {
	parts := func(o map[string]any) []any {
		o = offered(o)
		meta := o["metadata"].(map[string]any)
		delete(o, "metadata")
		delete(o, "apiVersion") // another version of the kind has the same fields
		return []any{o, meta["annotations"]}
	}
	return reflect.DeepEqual(parts(old), parts(object))
}

func deleting(object map[string]any) bool {
	meta, _ := object["metadata"].(map[string]any)
	at, _ := meta["deletionTimestamp"].(string)
	return at != ""
}

func fields(raw []byte) (map[string]any, error) {
	var out map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&out); err != nil {
		return nil, err
	}
	if out == nil {
		return nil, fmt.Errorf("no object")
	}
	return out, nil
}

// refusal says what is wrong: kubectl prints the message.
func refusal(r *admissionv1.AdmissionRequest, problems []problem.Diagnostic) *admissionv1.AdmissionResponse {
	status := &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid}
	status.Details = &metav1.StatusDetails{Group: r.Kind.Group, Kind: r.Kind.Kind, Name: r.Name}
	var lines []string
	for _, p := range problems {
		if isError(p) {
			lines = append(lines, line(p))
			cause := metav1.StatusCause{Type: metav1.CauseTypeFieldValueInvalid, Field: p.Field}
			p.Field = ""
			cause.Message = line(p) // some kubectls print the causes in place of the message
			status.Details.Causes = append(status.Details.Causes, cause)
		}
	}
	status.Message = strings.Join(lines, "\n")
	others := slices.DeleteFunc(slices.Clone(problems), isError)
	return &admissionv1.AdmissionResponse{UID: r.UID, Result: status, Warnings: warnings(others, "")}
}

// line returns a problem as one line: field, reason, and what to do.
func line(p problem.Diagnostic) string {
	text := p.Reason
	if p.Field != "" {
		text = p.Field + ": " + text
	}
	if p.Advice != "" {
		text += "; to do: " + p.Advice
	}
	return strings.Join(strings.Fields(text), " ")
}

// The API server cuts off what exceeds 4096 bytes of all warnings.
const (
	maxWarnings = 8
	maxWarning  = 400
)

func warnings(problems []problem.Diagnostic, prefix string) (all []string) {
	for n, p := range problems {
		if n == maxWarnings {
			return append(all, fmt.Sprintf("and %d more problems; `meshlog validate -f` shows them", len(problems)-n))
		}
		text := prefix + line(p)
		if len(text) > maxWarning {
			text = strings.ToValidUTF8(text[:maxWarning], "") + "..."
		}
		all = append(all, text)
	}
	return all
}

// Checked returns the kinds of the table whose objects the webhook gets: those that have a
// definition. Services, pods and the like are not among them: what serves must never wait
// for the webhook (ADM-5). MeshConfig and MeshNetworks are in ConfigMaps.
func Checked() (kinds []*kind.Kind) {
	for _, k := range kind.All() {
		if (k.Form == kind.Spec || k.Form == kind.Whole) && k.Group != "mesh.istio.io" {
			kinds = append(kinds, k)
		}
	}
	return kinds
}
