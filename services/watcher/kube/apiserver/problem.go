package apiserver

import (
	"cmp"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshlog.dev/services/mesh/problem"
)

// Trouble is what keeps a feed from being read.
type Trouble uint8

// What may keep a feed from being read.
const (
	None      Trouble = iota
	Forbidden         // RBAC does not allow it
	Unserved          // the API server does not know the resource any more
	Gone              // its definition is gone or about to go
	Suspect           // a list that lost much is not believed yet
	Failing           // errors, or silence
)

// Trouble of a feed as of now; for what may pass, none before it has lasted.
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

// Patience is how long an error is waited for to pass. One that the API server
// did not answer is not about this resource, and is found out otherwise.
func (f *Feed) Patience() time.Duration {
	if apierrors.ReasonForError(f.Err) != metav1.StatusReasonUnknown {
		return f.o.Limits.Patience
	}
	return f.o.Limits.Silence
}

// Problem says what keeps a feed from being read, and what to do.
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
		d.Reason = cmp.Or(f.Frozen, "the API server does not serve it any more")
		d.Advice = "install its definition again; what it leaves frozen is dropped by meshlog sources remove SOURCE --kind " + f.label()
	case Suspect:
		d.Severity, d.Code, d.Reason = problem.Warning, "doubted", f.Err.Error()
		d.Advice = "wait: it is asked again, and believed when it says the same"
	case Failing:
		d.Reason = "no answer"
		if f.Err != nil {
			d.Reason = f.Err.Error()
		}
		d.Advice = "see to the API server; it is tried again by itself"
	}
	return d, true
}

// rule is the RBAC rule by which a feed can be read.
func (f *Feed) rule() string {
	role := "ClusterRole"
	if f.Namespace != "" {
		role = "Role in " + f.Namespace
	}
	return fmt.Sprintf("a %s with apiGroups: [%q], resources: [%q], verbs: [get, list, watch]", role, f.Scope.Resource.Group, f.Scope.Resource.Resource)
}
