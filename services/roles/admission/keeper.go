package admission

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	rbacclient "k8s.io/client-go/kubernetes/typed/rbac/v1"
	"k8s.io/client-go/rest"

	"meshlog.dev/services/admission"
)

// manager is the name that the API server notes beside the fields that the keeper writes.
const manager = "meshlog-admission"

// Times of the keeper.
const (
	every       = 5 * time.Second // between two looks at the configuration
	requestTime = 5 * time.Second // for one request to the API server
	dialTime    = 2 * time.Second // for the handshake with a replica
)

// keeper keeps the ValidatingWebhookConfiguration as the settings and the table of kinds
// say. All replicas read it, the leader writes it.
type keeper struct {
	*Settings
	log     *slog.Logger
	metrics *admission.Metrics
	serving *serving

	configurations admissionclient.ValidatingWebhookConfigurationInterface
	core           coreclient.CoreV1Interface
	slices         discoveryclient.EndpointSliceInterface
	roles          rbacclient.ClusterRoleInterface

	leads  atomic.Bool
	state  atomic.Pointer[state]
	logged string // the error of the look before; used by look only
}

// state is what the keeper saw last.
type state struct {
	Leader   bool   `json:"leader"`
	Policy   string `json:"policy,omitempty"` // empty: there is no configuration
	Paused   string `json:"paused,omitempty"` // who paused the webhook, since when, and why
	Roots    int    `json:"roots"`
	Error    string `json:"error,omitempty"`
	err      error
	unproven error               // why the policy is not Fail yet
	had      []*x509.Certificate // the roots before the look
}

func newKeeper(s *Settings, c *rest.Config, serving *serving, metrics *admission.Metrics, log *slog.Logger) (*keeper, error) {
	c = rest.CopyConfig(c)
	c.Timeout = requestTime
	k := &keeper{Settings: s, log: log, metrics: metrics, serving: serving}
	admissions, err := admissionclient.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	core, err := coreclient.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	discovery, err := discoveryclient.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	rbac, err := rbacclient.NewForConfig(c)
	if err != nil {
		return nil, err
	}
	k.configurations, k.core = admissions.ValidatingWebhookConfigurations(), core
	k.slices, k.roles = discovery.EndpointSlices(s.Namespace), rbac.ClusterRoles()
	k.state.Store(&state{})
	return k, nil
}

// run looks at the configuration until ctx is done. An API server that is away stops
// nothing: it sends no requests meanwhile either.
func (k *keeper) run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		k.look(ctx)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// look reads the configuration, and corrects it if this replica leads. A conflict with
// another writer is retried at once.
func (k *keeper) look(ctx context.Context) {
	s := &state{Leader: k.leads.Load()}
	for range 5 {
		s.err = k.step(ctx, s)
		if !apierrors.IsConflict(s.err) && !apierrors.IsAlreadyExists(s.err) {
			break
		}
	}
	if ctx.Err() != nil {
		return
	}
	if s.had != nil {
		k.serving.seen(s.had)
	}
	text := ""
	if s.err != nil {
		s.Error = s.err.Error()
		text = s.Error
	}
	if text != k.logged && text != "" {
		k.log.Warn("the webhook's configuration", "error", s.err)
	}
	k.logged = text
	if was := k.state.Load(); was.Paused != s.Paused && s.err == nil {
		k.log.Info("the pause of the webhook changed", "paused", s.Paused, "before", was.Paused)
	}
	k.state.Store(s)
	set := func(g interface{ Set(float64) }, on bool) {
		value := 0.0
		if on {
			value = 1
		}
		g.Set(value)
	}
	set(k.metrics.Leads, s.Leader)
	set(k.metrics.Enforced, s.Policy == string(admissionregistrationv1.Fail))
	set(k.metrics.Paused, s.Paused != "")
	set(k.metrics.Trouble, s.err != nil)
}

// step makes one look.
func (k *keeper) step(ctx context.Context, s *state) error {
	now, err := k.configurations.Get(ctx, k.name(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if !s.Leader {
			return nil
		}
		return k.create(ctx)
	}
	if err != nil {
		return fmt.Errorf("read ValidatingWebhookConfiguration %s: %w", k.name(), err)
	}
	had := k.had(now)
	s.had = had
	s.Policy, s.Paused, s.Roots = policyOf(now), admission.Paused(now), len(had)
	if !s.Leader {
		return nil
	}
	file, err := readRoots(k.Roots)
	if err != nil {
		return err
	}
	bundle := file
	if len(had) > 0 {
		shown, known := k.shown(ctx)
		bundle = bundleOf(file, had, shown, known, time.Now())
	}
	policy := admissionregistrationv1.Ignore
	if s.Paused == "" && s.Policy == string(admissionregistrationv1.Fail) {
		policy = admissionregistrationv1.Fail // it never goes back by itself (ADM-3)
	}
	if now, err = k.correct(ctx, s, now, bundle, policy); err != nil {
		return err
	}
	if s.Paused != "" || policy == admissionregistrationv1.Fail {
		return nil
	}
	if s.unproven = k.probe(ctx); s.unproven != nil {
		return nil
	}
	k.log.Info("the API server refused an invalid object by this webhook; from now on it refuses what it cannot check", "name", k.name())
	_, err = k.correct(ctx, s, now, bundle, admissionregistrationv1.Fail)
	return err
}

// correct writes the configuration if it differs, unless another writer was faster.
func (k *keeper) correct(
	ctx context.Context, s *state, now *admissionregistrationv1.ValidatingWebhookConfiguration,
	bundle []*x509.Certificate, policy admissionregistrationv1.FailurePolicyType,
) (*admissionregistrationv1.ValidatingWebhookConfiguration, error) {
	want := now.DeepCopy()
	want.Webhooks = k.webhooks(bundle, policy)
	if equality.Semantic.DeepEqual(want.Webhooks, now.Webhooks) {
		return now, nil
	}
	now, err := k.configurations.Update(ctx, want, metav1.UpdateOptions{FieldManager: manager})
	if err != nil {
		return nil, err
	}
	k.log.Info("wrote the webhook's configuration", "name", k.name(), "policy", policy, "roots", len(bundle))
	s.Policy, s.Roots = string(policy), len(bundle)
	return now, nil
}

func (k *keeper) webhooks(bundle []*x509.Certificate, policy admissionregistrationv1.FailurePolicyType) []admissionregistrationv1.ValidatingWebhook {
	return admission.Webhooks(admission.Options{
		Namespace: k.Namespace, Revision: k.Revision, Client: k.client(encodeRoots(bundle)), Policy: policy,
	})
}

// create makes the configuration. Server-side apply, because a right to create objects of
// one name covers it, and no other way. It belongs to the ClusterRole of the same name, if
// there is one: the cluster's garbage collector removes it with that.
func (k *keeper) create(ctx context.Context) error {
	file, err := readRoots(k.Roots)
	if err != nil {
		return err
	}
	c := &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta:   metav1.TypeMeta{APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfiguration"},
		ObjectMeta: metav1.ObjectMeta{Name: k.name(), Labels: map[string]string{"app.kubernetes.io/part-of": "meshlog"}},
		Webhooks:   k.webhooks(file, admissionregistrationv1.Ignore),
	}
	if role, err := k.roles.Get(ctx, k.name(), metav1.GetOptions{}); err == nil {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole", Name: role.Name, UID: role.UID}}
	}
	b, err := json.Marshal(c)
	if err != nil {
		return err
	}
	if _, err := k.configurations.Patch(ctx, c.Name, types.ApplyPatchType, b, metav1.PatchOptions{FieldManager: manager}); err != nil {
		return fmt.Errorf("create ValidatingWebhookConfiguration %s: %w", c.Name, err)
	}
	k.log.Info("created the webhook's configuration", "name", c.Name, "policy", admissionregistrationv1.Ignore)
	return nil
}

// probe sends an invalid object as a dry run, and returns why the webhook has not refused
// it.
func (k *keeper) probe(ctx context.Context) error {
	b, err := json.Marshal(admission.Probe(k.Namespace))
	if err != nil {
		return err
	}
	_, err = k.core.ConfigMaps(k.Namespace).Patch(ctx, admission.ProbeName, types.ApplyPatchType, b, metav1.PatchOptions{
		FieldManager: manager, DryRun: []string{metav1.DryRunAll},
	})
	switch {
	case admission.ProbeRefused(err):
		return nil
	case err != nil:
		return err
	}
	return errors.New("the API server does not ask the webhook")
}

// had returns the roots that the API server has.
func (k *keeper) had(c *admissionregistrationv1.ValidatingWebhookConfiguration) []*x509.Certificate {
	if len(c.Webhooks) == 0 {
		return nil
	}
	roots, err := parseRoots(c.Webhooks[0].ClientConfig.CABundle)
	if err != nil {
		return nil
	}
	return roots
}

func policyOf(c *admissionregistrationv1.ValidatingWebhookConfiguration) string {
	if len(c.Webhooks) == 0 || c.Webhooks[0].FailurePolicy == nil {
		return ""
	}
	return string(*c.Webhooks[0].FailurePolicy)
}

// shown returns the chains that the replicas show, and whether all of them are known.
func (k *keeper) shown(ctx context.Context) (chains [][][]byte, known bool) {
	addresses, err := k.addresses(ctx)
	if err != nil {
		return nil, false
	}
	known = len(addresses) > 0
	for _, a := range addresses {
		chain, err := chainOf(ctx, a, k.host())
		if err != nil {
			known = false
			continue
		}
		chains = append(chains, chain)
	}
	return chains, known
}

// addresses returns the addresses of the replicas that get requests.
func (k *keeper) addresses(ctx context.Context) (all []string, err error) {
	if k.URL != "" {
		u, err := url.Parse(k.URL)
		if err != nil {
			return nil, err
		}
		return []string{u.Host}, nil
	}
	list, err := k.slices.List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + k.Service})
	if err != nil {
		return nil, err
	}
	for _, s := range list.Items {
		for _, e := range s.Endpoints {
			if e.Conditions.Serving != nil && !*e.Conditions.Serving || e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, a := range e.Addresses {
				for _, p := range s.Ports {
					if p.Port != nil {
						all = append(all, net.JoinHostPort(a, strconv.Itoa(int(*p.Port))))
					}
				}
			}
		}
	}
	return all, nil
}

// chainOf returns the certificates that a replica shows.
func chainOf(ctx context.Context, address, host string) (chain [][]byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{ // it looks at a certificate, and sends nothing
		InsecureSkipVerify: true, ServerName: host, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
	}}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for _, c := range conn.(*tls.Conn).ConnectionState().PeerCertificates {
		chain = append(chain, c.Raw)
	}
	return chain, nil
}
