package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshlog.dev/services/internal/kind"
	"meshlog.dev/services/internal/model"
)

// trouble is what keeps a feed from being read.
type trouble uint8

const (
	none      trouble = iota
	forbidden         // RBAC does not allow it
	unserved          // the API server does not know the resource any more
	gone              // its definition is gone or about to go
	suspect           // a list that lost much is not believed yet
	failing           // errors, or silence
)

// trouble of a feed as of now; for what may pass, none before it has lasted.
func (f *feed) trouble(now time.Time) trouble {
	switch {
	case f.frozen != "":
		return gone
	case f.doubts:
		return suspect
	case apierrors.IsForbidden(f.err):
		return forbidden
	case apierrors.IsNotFound(f.err) || apierrors.IsMethodNotSupported(f.err):
		return unserved
	case f.err != nil && !now.Before(f.since.Add(f.patience())), !f.synced && !now.Before(f.heard().Add(f.limits.silence)):
		return failing
	}
	return none
}

// patience is how long an error is waited for to pass. One that the API server
// did not answer is not about this resource, and is found out otherwise.
func (f *feed) patience() time.Duration {
	if apierrors.ReasonForError(f.err) != metav1.StatusReasonUnknown {
		return f.limits.patience
	}
	return f.limits.silence
}

func (f *feed) heard() time.Time { return time.Unix(0, f.arrived.Load()) }

// problem says what keeps a feed from being read, and what to do.
func (f *feed) problem(now time.Time) (model.Diagnostic, bool) {
	d := model.Diagnostic{
		Severity: model.Error, Code: "unreadable", Origin: f.scope.String(),
		Effect: "objects of this kind stay as they are on the log; nothing is removed",
	}
	switch f.trouble(now) {
	case none:
		return d, false
	case forbidden:
		d.Code, d.Reason, d.Advice = "forbidden", f.err.Error(), "allow it: "+f.rule()
	case unserved, gone:
		d.Severity, d.Code = model.Warning, "not-served"
		d.Reason = cmp.Or(f.frozen, "the API server does not serve it any more")
		d.Advice = "install its definition again; what it leaves frozen is dropped by meshlog sources remove SOURCE --kind " + f.label()
	case suspect:
		d.Severity, d.Code, d.Reason = model.Warning, "doubted", f.err.Error()
		d.Advice = "wait: it is asked again, and believed when it says the same"
	case failing:
		d.Reason = "no answer"
		if f.err != nil {
			d.Reason = f.err.Error()
		}
		d.Advice = "see to the API server; it is tried again by itself"
	}
	return d, true
}

// rule is the RBAC rule by which a feed can be read.
func (f *feed) rule() string {
	role := "ClusterRole"
	if f.namespace != "" {
		role = "Role in " + f.namespace
	}
	return fmt.Sprintf("a %s with apiGroups: [%q], resources: [%q], verbs: [get, list, watch]", role, f.resource.Group, f.resource.Resource)
}

// waits says that a kind, or without a name all in namespaces, is not spoken of
// for lack of another.
func waits(name, need string) model.Diagnostic {
	d := model.Diagnostic{
		Severity: model.Error, Code: "needs", Key: model.Key{Kind: name},
		Reason: "what objects of this kind say is not known without those of kind " + need, Advice: "make those readable",
		Effect: "objects of this kind stay as they are on the log; nothing is removed",
	}
	if name == "" {
		d.Reason = "which namespaces count is not known without objects of kind " + need
		d.Effect = "objects in namespaces stay as they are on the log; nothing is removed"
	}
	return d
}

// unready says that the API server says that it is not ready.
func unready(err error) []model.Diagnostic {
	if err == nil {
		return nil
	}
	return []model.Diagnostic{{
		Severity: model.Warning, Code: "not-ready", Reason: "the API server answers, and " + err.Error(),
		Advice: "look at its /readyz?verbose", Effect: "changes may not be seen; nothing is removed",
	}}
}

// missing says which kinds the API server does not serve.
func missing(kinds []*kind.Kind) []model.Diagnostic {
	if len(kinds) == 0 {
		return nil
	}
	var names []string
	for _, k := range kinds {
		names = append(names, k.Name)
	}
	slices.Sort(names)
	return []model.Diagnostic{{
		Severity: model.Info, Code: "not-installed",
		Reason: "the API server does not know " + strings.Join(names, ", "),
		Advice: "install their definitions if you want to use them: they are watched from then on",
		Effect: "objects of these kinds that are on the log stay, until meshlog sources remove SOURCE --kind KIND",
	}}
}
