package admission

import (
	"cmp"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshlog.dev/services/mesh/kind"
)

// Path is where the API server sends its requests.
const Path = "/validate"

// The names of the webhooks. kubectl shows them when an object is refused.
const (
	objectsWebhook  = "objects.admission.meshlog.dev"
	revisionWebhook = "revision.admission.meshlog.dev"
	probeWebhook    = "probe.admission.meshlog.dev"
)

// ConfigurationName returns the name of the ValidatingWebhookConfiguration of a revision of
// the control plane.
func ConfigurationName(revision string) string {
	if revision == "" {
		return "meshlog-admission"
	}
	return "meshlog-admission-" + strings.ReplaceAll(strings.ToLower(revision), "_", "-")
}

// timeout is how long the API server waits for an answer (ADM-3).
const timeout int32 = 5

// Options select the objects that are sent to the webhook.
type Options struct {
	// Namespace is the one in which meshlog runs. Its objects are not checked, so that
	// it can be repaired (ADM-5).
	Namespace string
	// Revision is that of the control plane; empty: it sees all objects.
	Revision string
	Client   admissionregistrationv1.WebhookClientConfig
	Policy   admissionregistrationv1.FailurePolicyType
}

// Webhooks returns the webhooks of a ValidatingWebhookConfiguration. Its rules follow from
// the table of kinds (ADM-2).
func Webhooks(o Options) []admissionregistrationv1.ValidatingWebhook {
	all := []admissionregistrationv1.ValidatingWebhook{o.webhook(objectsWebhook, rules())}
	all[0].NamespaceSelector = outside(o.Namespace, "kube-system")
	if o.Revision != "" {
		// A selector cannot say "this value, or no label", so there are two webhooks.
		other := *all[0].DeepCopy()
		all[0].ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: kind.RevisionLabel, Operator: metav1.LabelSelectorOpDoesNotExist},
		}}
		other.Name = revisionWebhook
		other.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{kind.RevisionLabel: o.Revision}}
		all = append(all, other)
	}
	probe := o.webhook(probeWebhook, []admissionregistrationv1.RuleWithOperations{rule("", []string{"v1"}, []string{"configmaps"})})
	probe.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: o.Namespace}}
	probe.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{ProbeLabel: "true"}}
	ignore := admissionregistrationv1.Ignore // without an answer the probe is stored nowhere: it is a dry run
	probe.FailurePolicy = &ignore
	return append(all, probe)
}

func (o *Options) webhook(name string, rules []admissionregistrationv1.RuleWithOperations) admissionregistrationv1.ValidatingWebhook {
	policy, match, none, seconds := o.Policy, admissionregistrationv1.Equivalent, admissionregistrationv1.SideEffectClassNone, timeout
	return admissionregistrationv1.ValidatingWebhook{
		Name: name, ClientConfig: o.Client, Rules: rules, FailurePolicy: &policy, MatchPolicy: &match, SideEffects: &none,
		NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
		TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
	}
}

// outside selects all namespaces but these. Objects without a namespace match, too.
func outside(namespaces ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpNotIn, Values: namespaces},
	}}
}

// rules returns a rule for the kinds of each group that have the same versions.
func rules() []admissionregistrationv1.RuleWithOperations {
	var all []admissionregistrationv1.RuleWithOperations
	of := map[string]int{}
	for _, k := range Checked() {
		id := k.Group + " " + strings.Join(k.Versions, " ")
		n, known := of[id]
		if !known {
			n = len(all)
			of[id], all = n, append(all, rule(k.Group, k.Versions, nil))
		}
		all[n].Resources = append(all[n].Resources, resource(k))
	}
	slices.SortFunc(all, func(a, b admissionregistrationv1.RuleWithOperations) int {
		return cmp.Or(cmp.Compare(a.APIGroups[0], b.APIGroups[0]), slices.Compare(a.APIVersions, b.APIVersions))
	})
	return all
}

func rule(group string, versions, resources []string) admissionregistrationv1.RuleWithOperations {
	scope := admissionregistrationv1.AllScopes
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: versions, Resources: resources, Scope: &scope},
	}
}

// resource returns the plural of a kind, as its definition has it. The table of kinds has
// none; a test compares these with the names of a real API server.
func resource(k *kind.Kind) string {
	name := strings.ToLower(k.DocumentKind())
	end := len(name) - 1
	switch {
	case name[end] == 's':
		return name + "es"
	case name[end] == 'y' && !strings.ContainsRune("aeiou", rune(name[end-1])):
		return name[:end] + "ies"
	}
	return name + "s"
}
