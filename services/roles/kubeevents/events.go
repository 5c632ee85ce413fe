package kubeevents

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/kind"
)

// period is how long an Event counts for its problem. API servers forget Events after an
// hour; a problem that lasts gets another one each hour.
const period = time.Hour

// Limits of an Event.
const (
	maxName    = 200 // bytes of the object's name in that of the Event
	maxMessage = 1000
)

// eventOf returns the Event about a problem; ok is false for a problem of no object of
// the cluster. Its name follows from the problem and the hour, so that a process that
// creates it a second time finds that it exists: nothing is read back.
func eventOf(d *snapshotv1.Diagnostic, cluster string, now time.Time) (e *corev1.Event, ok bool) {
	ref, ok := object(d.GetObject(), cluster)
	if !ok || d.GetSeverity() < snapshotv1.Severity_SEVERITY_WARNING {
		return nil, false
	}
	ref.FieldPath = d.GetField()
	at := now.UTC().Truncate(time.Second)
	sum := sha256.New()
	for _, part := range []string{d.GetObject(), d.GetCode(), d.GetField(), d.GetReason(), d.GetAdvice(), d.GetEffect(), at.Truncate(period).Format(time.RFC3339)} {
		fmt.Fprintf(sum, "%d %s ", len(part), part)
	}
	e = &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", ref.Name[:min(len(ref.Name), maxName)], sum.Sum(nil)[:8]), Namespace: ref.Namespace},
		InvolvedObject: ref, Reason: reason(d.GetCode()), Message: message(d), Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: "meshlog"}, ReportingController: "meshlog.dev/kube-events",
		FirstTimestamp: metav1.NewTime(at), LastTimestamp: metav1.NewTime(at), Count: 1,
	}
	if e.Namespace == "" {
		e.Namespace = metav1.NamespaceDefault // where Events about objects without a namespace are
	}
	return e, true
}

// object returns the object of the cluster that a problem names: KIND NAMESPACE/NAME
// (kubernetes/CLUSTER).
func object(text, cluster string) (ref corev1.ObjectReference, ok bool) {
	name, found := strings.CutSuffix(text, " (kubernetes/"+cluster+")")
	kindName, name, two := strings.Cut(name, " ")
	k, known := kind.ByName(kindName)
	if !found || !two || !known || k.Form == kind.Produced || k.Group == "mesh.istio.io" {
		return ref, false // MeshConfig and MeshNetworks are in ConfigMaps
	}
	ref = corev1.ObjectReference{APIVersion: k.APIVersion(), Kind: k.DocumentKind(), Name: name}
	if k.Namespaced {
		ref.Namespace, ref.Name, found = strings.Cut(name, "/")
	}
	return ref, found && ref.Name != ""
}

// reason returns the reason of an Event for a code: "not-yet" is NotYet.
func reason(code string) string {
	var b strings.Builder
	for word := range strings.SplitSeq(code, "-") {
		if word != "" {
			b.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	if b.Len() == 0 {
		return "Problem"
	}
	return b.String()
}

func message(d *snapshotv1.Diagnostic) string {
	text := d.GetReason()
	if d.GetField() != "" {
		text = d.GetField() + ": " + text
	}
	for _, more := range []struct{ title, text string }{{"to do", d.GetAdvice()}, {"meanwhile", d.GetEffect()}} {
		if more.text != "" {
			text += "; " + more.title + ": " + more.text
		}
	}
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "..."
	}
	return text
}
