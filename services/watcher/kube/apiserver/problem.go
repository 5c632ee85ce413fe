package apiserver

import (
	"cmp"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshlog.dev/services/mesh/problem"
)

// Trouble is the reason why a feed cannot be read: the code of its diagnostic.
type Trouble string

// Reasons why a feed cannot be read.
const (
	None      Trouble = ""
	Forbidden Trouble = "forbidden"  // RBAC does not allow it
	Unserved  Trouble = "not-served" // the API server no longer serves the resource, or the feed is frozen
	Suspect   Trouble = "doubted"    // a list that lost most objects waits for confirmation
	Failing   Trouble = "unreadable" // errors, or no answer
)

// Trouble returns the trouble of a feed. Errors that may pass count only after
// Patience.
func (f *Feed) Trouble(now time.Time) Trouble {
	switch {
	case f.Frozen != "":
		return Unserved
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

// Deadlines returns the times at which the feed gets into trouble, or into worse
// trouble, unless a message comes before.
func (f *Feed) Deadlines() []time.Time {
	var at []time.Time
	if f.Err != nil {
		at = append(at, f.Since.Add(f.Patience()), f.Since.Add(f.o.Limits.Down))
	}
	if !f.Synced {
		at = append(at, f.Heard().Add(f.o.Limits.Silence))
	}
	return at
}

// EarliestAfter returns the earliest of times after now, or now plus one hour if
// that is earlier.
func EarliestAfter(now time.Time, times []time.Time) time.Time {
	next := now.Add(time.Hour)
	for _, t := range times {
		if t.After(now) && t.Before(next) {
			next = t
		}
	}
	return next
}

// Problem returns the diagnostic of a feed in trouble; ok is false if it has none, or
// its trouble is too new.
func (f *Feed) Problem(now time.Time) (problem.Diagnostic, bool) {
	trouble := f.Trouble(now)
	d := problem.Diagnostic{
		Severity: problem.Error, Code: string(cmp.Or(trouble, Failing)), Origin: f.Scope.String(),
		Effect: "objects of this kind stay as they are on the log; nothing is removed",
	}
	switch trouble {
	case Forbidden:
		d.Reason, d.Advice = f.Err.Error(), "allow it: "+f.rule()
	case Unserved:
		d.Severity, d.Reason = problem.Warning, cmp.Or(f.Frozen, "the API server no longer serves it")
		d.Advice = "install its definition again, or drop its frozen objects with meshlog sources remove SOURCE --kind " + f.Label(f.Kind)
	case Suspect:
		d.Severity, d.Reason = problem.Warning, f.Err.Error()
		d.Advice = "wait: the watcher lists again and accepts the list if it says the same"
	case Failing:
		d.Reason = "no answer"
		if f.Err != nil {
			d.Reason = f.Err.Error()
		}
		d.Advice = "check the API server; the watcher retries"
	}
	return d, trouble != None
}

// rule describes the RBAC rule that a feed needs.
func (f *Feed) rule() string {
	role := "ClusterRole"
	if f.Namespace != "" {
		role = "Role in " + f.Namespace
	}
	return fmt.Sprintf("a %s with apiGroups: [%q], resources: [%q], verbs: [get, list, watch]", role, f.Scope.Resource.Group, f.Scope.Resource.Resource)
}
