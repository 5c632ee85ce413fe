// Package clusters finds other clusters in Secrets with their kubeconfigs.
package clusters

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher/kube/apiserver"
	"meshlog.dev/services/watcher/kube/index"
)

// Label selects the Secrets. Each key of their data is the name of a cluster, and its
// value is a kubeconfig.
const Label = "istio/multiCluster=true"

// Cluster is a cluster that a Secret names.
type Cluster struct {
	Name string
	REST *rest.Config
	// Version changes with the kubeconfig.
	Version string
}

// Config names the Secrets.
type Config struct {
	API       *rest.Config // of the cluster with the Secrets
	Home      string       // name of that cluster, which no other cluster may have
	Namespace string
	Logger    *slog.Logger
	Limits    apiserver.Limits
}

// Found is the content of the Secrets.
type Found struct {
	// Clusters are sorted by name.
	Clusters []Cluster
	// Unread is why the Secrets have never been read; Clusters is then empty. If
	// later reads fail, Clusters stays as it is.
	Unread      error
	Diagnostics []problem.Diagnostic
}

// Watch watches the Secrets until ctx is done. It calls tell when they have been
// read or cannot be read, and after each possible change.
func Watch(ctx context.Context, c Config, tell func(Found)) error {
	client, err := apiserver.New(c.API)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(apiserver.Quietly(ctx, c.Logger))
	inbox := make(chan apiserver.Message)
	uncounted := prometheus.NewCounter(prometheus.CounterOpts{})
	f := client.NewFeed(nil, apiserver.Scope{Resource: apiserver.Secrets, Namespace: c.Namespace, Labels: Label}, apiserver.Options{
		Convert: read, Limits: c.Limits, Lists: uncounted, Restarts: uncounted,
		Send: func(m apiserver.Message) {
			select {
			case inbox <- m:
			case <-ctx.Done():
			}
		},
	})
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { f.Run(ctx) })
	return c.follow(ctx, f, inbox, tell)
}

func (c *Config) follow(ctx context.Context, f *apiserver.Feed, inbox <-chan apiserver.Message, tell func(Found)) error {
	held := map[index.Key]*index.Object{}
	looked := time.Now() // time of the last look; everything due later is still to be done
	for {
		select {
		case m := <-inbox:
			f.Note(m)
			switch m.What {
			case apiserver.Replaced:
				clear(held)
				fallthrough
			case apiserver.Put:
				for _, o := range m.Objects {
					held[o.Key] = o
				}
			case apiserver.Removed:
				delete(held, m.Gone)
			}
			f.Held.Store(int64(len(held)))
		case <-time.After(time.Until(apiserver.EarliestAfter(looked, f.Deadlines()))):
		case <-ctx.Done():
			return ctx.Err()
		}
		looked = time.Now()
		d, trouble := f.Problem(looked)
		if !f.Synced {
			if trouble || f.Err != nil {
				tell(unread(d, f.Err))
			}
			continue
		}
		clusters, ds := c.clusters(slices.Collect(maps.Values(held)))
		if trouble {
			d.Effect = "the watched clusters stay as they are; none is added or removed"
			ds = append(ds, d)
		}
		tell(Found{Clusters: clusters, Diagnostics: ds})
	}
}

// unread returns the result before the first read. d is the feed's diagnostic, which
// is empty if the trouble is new, and err is the feed's last error.
func unread(d problem.Diagnostic, err error) Found {
	if d.Reason == "" {
		d.Reason, d.Advice = err.Error(), "check the API server; the watcher retries"
	}
	d.Effect = "other clusters are not watched until then; their objects on the log stay as they are"
	return Found{Unread: errors.New(d.Reason), Diagnostics: []problem.Diagnostic{d}}
}

// remote is a cluster in a Secret. If its kubeconfig is unusable, REST is nil and
// problem says why.
type remote struct {
	Cluster
	origin  string
	problem string
}

// read converts a Secret and wipes its content.
func read(from runtime.Object) (*index.Object, bool) {
	s := from.(*corev1.Secret)
	o := &index.Object{Key: index.Key{Name: s.Name}, Version: s.ResourceVersion, Created: s.CreationTimestamp.UTC()}
	var all []remote
	for _, name := range slices.Sorted(maps.Keys(s.Data)) {
		kubeconfig := s.Data[name]
		r := remote{origin: fmt.Sprintf("Secret %s/%s, %s", s.Namespace, s.Name, name)}
		r.Name = name
		sum := sha256.Sum256(kubeconfig)
		r.Version = hex.EncodeToString(sum[:])
		var err error
		if r.REST, err = selfContained(kubeconfig); err != nil {
			r.problem = err.Error()
		}
		all = append(all, r)
		clear(kubeconfig)
	}
	o.Body = all
	return o, true
}

// clusters returns the usable clusters of all Secrets, and diagnostics for the others.
// If several have the same name, the oldest Secret wins.
func (c *Config) clusters(held []*index.Object) ([]Cluster, []problem.Diagnostic) {
	slices.SortFunc(held, func(a, b *index.Object) int {
		return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.Name, b.Name))
	})
	var out []Cluster
	var ds []problem.Diagnostic
	from := map[string]string{c.Home: "the cluster of this watcher"}
	for _, o := range held {
		for _, r := range o.Body.([]remote) {
			d := problem.Diagnostic{Severity: problem.Error, Code: "cluster", Origin: r.origin, Effect: "this Secret's cluster is not watched"}
			switch first, taken := from[r.Name]; {
			case taken:
				d.Reason, d.Advice = "the name "+r.Name+" is already used by "+first, "give the cluster another name"
			case r.problem != "":
				d.Reason, d.Advice = r.problem, "write a self-contained kubeconfig: the server, its certificate authority's certificate, and a token or a client's certificate and key"
			default:
				out = append(out, r.Cluster)
			}
			if d.Reason != "" {
				ds = append(ds, d)
			}
			if _, taken := from[r.Name]; !taken {
				from[r.Name] = r.origin
			}
		}
	}
	slices.SortFunc(out, func(a, b Cluster) int { return strings.Compare(a.Name, b.Name) })
	return out, ds
}

// selfContained reads an untrusted kubeconfig. It refuses one that runs a program, or
// reads or sends a file of this machine: the right to write a Secret must not
// include that.
func selfContained(kubeconfig []byte) (*rest.Config, error) {
	if len(bytes.TrimSpace(kubeconfig)) == 0 {
		return nil, errors.New("is empty")
	}
	c, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("is not a kubeconfig: %w", err)
	}
	current, ok := c.Contexts[c.CurrentContext]
	if !ok {
		return nil, errors.New("current-context: does not name a context")
	}
	cluster, user := c.Clusters[current.Cluster], c.AuthInfos[current.AuthInfo]
	if cluster == nil || user == nil {
		return nil, errors.New("current-context: its cluster or its user is missing")
	}
	if err := contained(cluster, user); err != nil {
		return nil, err
	}
	out, err := clientcmd.NewNonInteractiveClientConfig(*c, c.CurrentContext, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("is not a kubeconfig: %w", err)
	}
	return out, nil
}

func contained(cluster *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) error {
	for _, refused := range []struct {
		is     bool
		field  string
		reason string
	}{
		{user.Exec != nil, "user.exec", "a program is not run"},
		{user.AuthProvider != nil, "user.auth-provider", "a program is not run"},
		{user.TokenFile != "", "user.tokenFile", "a file is not read; write the token"},
		{user.ClientCertificate != "", "user.client-certificate", "a file is not read; write client-certificate-data"},
		{user.ClientKey != "", "user.client-key", "a file is not read; write client-key-data"},
		{cluster.CertificateAuthority != "", "cluster.certificate-authority", "a file is not read; write certificate-authority-data"},
		{cluster.InsecureSkipTLSVerify, "cluster.insecure-skip-tls-verify", "any server would get the credentials; write certificate-authority-data"},
		{!strings.HasPrefix(cluster.Server, "https://"), "cluster.server", "the credentials would go unencrypted; write https://HOST:PORT"},
	} {
		if refused.is {
			return fmt.Errorf("%s: %s", refused.field, refused.reason)
		}
	}
	return nil
}
