package apiserver

import (
	"cmp"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshlog.dev/services/mesh/problem"
)

// Trouble is the reason why a feed cannot be read.
type Trouble uint8

// Reasons why a feed cannot be read.
const (
	None      Trouble = iota
	Forbidden         // RBAC does not allow it
	Unserved          // the API server no longer serves the resource
	Gone              // the feed is frozen: its definition is gone or being removed
	Suspect           // a list that lost most objects waits for confirmation
	Failing           // errors, or no answer
)

// Trouble returns the trouble of a feed. Errors that may pass count only after
// Patience.
func (f *Feed) Trouble(now time.Time) Trouble {
	switch {
	case f.Frozen != "":
		return Gone
	case f.Doubts:
		return Suspect
	case apierrors.IsForbidden(f.Err):
		return Forbidden
	case apierrors.IsNotFound(f.Err) || apierrors.IsMethodNotSupported(f.Err):
		return Unserved
	case f.Err != nil && !now.Before(f.Since.Add(f.Patience())), !f.Synced && !now.Before(f.Heard().Add(f.o.Limits.Silence)):
		return Failing
	}
	return None
}

// Patience returns the time for which an error is expected to pass. It is longer
// for an error that is not an answer of the API server: that is not about this
// resource, and WatchOver detects it.
func (f *Feed) Patience() time.Duration {
	if apierrors.ReasonForError(f.Err) != metav1.StatusReasonUnknown {
		return f.o.Limits.Patience
	}
	return f.o.Limits.Silence
}

// Problem returns the diagnostic of a feed in trouble; ok is false if it has none.
func (f *Feed) Problem(now time.Time) (problem.Diagnostic, bool) {
	d := problem.Diagnostic{
		Severity: problem.Error, Code: "unreadable", Origin: f.Scope.String(),
		Effect: "objects of this kind stay as they are on the log; nothing is removed",
	}
	switch f.Trouble(now) {
	case None:
		return d, false
	case Forbidden:
		d.Code, d.Reason, d.Advice = "forbidden", f.Err.Error(), "allow it: "+f.rule()
	case Unserved, Gone:
		d.Severity, d.Code = problem.Warning, "not-served"
		d.Reason = cmp.Or(f.Frozen, "the API server no longer serves it")
		d.Advice = "install its definition again, or drop its frozen objects with meshlog sources remove SOURCE --kind " + f.label()
	case Suspect:
		d.Severity, d.Code, d.Reason = problem.Warning, "doubted", f.Err.Error()
		d.Advice = "wait: the watcher lists again and accepts the list if it says the same"
	case Failing:
		d.Reason = "no answer"
		if f.Err != nil {
			d.Reason = f.Err.Error()
		}
		d.Advice = "check the API server; the watcher retries"
	}
	return d, true
}

// rule describes the RBAC rule that a feed needs.
func (f *Feed) rule() string {
	role := "ClusterRole"
	if f.Namespace != "" {
		role = "Role in " + f.Namespace
	}
	return fmt.Sprintf("a %s with apiGroups: [%q], resources: [%q], verbs: [get, list, watch]", role, f.Scope.Resource.Group, f.Scope.Resource.Resource)
}
