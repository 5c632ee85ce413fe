package kube

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"meshlog.dev/services/internal/model"
)

// RemoteLabel is on the Secrets that say how other clusters are reached: each of
// their data is a kubeconfig, under the cluster's name.
const RemoteLabel = "istio/multiCluster=true"

// Remote is another cluster, as a Secret says.
type Remote struct {
	Name string
	REST *rest.Config
	// Version is another one when the cluster is reached in another way.
	Version string
}

// Clusters watches the Secrets of a namespace that say how other clusters are
// reached.
type Clusters struct {
	cfg       Config
	namespace string
	limits    limits
}

// NewClusters watches the Secrets of the cluster that cfg says.
func NewClusters(cfg Config, namespace string) (*Clusters, error) {
	w, err := New(cfg)
	if err != nil {
		return nil, err
	}
	return &Clusters{cfg: w.cfg, namespace: namespace, limits: w.limits}, nil
}

// Run calls tell with all clusters, sorted by name, and with what is wrong,
// once they are known and whenever they change, until ctx is done. While the
// Secrets cannot be read, clusters stay as they are.
func (c *Clusters) Run(ctx context.Context, tell func([]Remote, []model.Diagnostic)) error {
	client, err := newClient(c.cfg)
	if err != nil {
		return err
	}
	defer client.close()
	s := scope{resource: resource{secrets, true}, namespace: c.namespace, labels: RemoteLabel}
	f := &feed{
		scope: s, convert: remotesOf, reader: client.reader(s.resource.GroupVersionResource, s.namespace),
		metrics: c.cfg.Metrics, limits: c.limits,
	}
	inbox := make(chan message)
	f.send = func(m message) {
		select {
		case inbox <- m:
		case <-ctx.Done():
		}
	}
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(quietly(ctx, c.cfg.Logger))
	defer cancel()
	running.Go(func() { f.run(ctx) })
	return c.follow(ctx, f, inbox, tell)
}

func (c *Clusters) follow(ctx context.Context, f *feed, inbox <-chan message, tell func([]Remote, []model.Diagnostic)) error {
	held := map[key]*object{}
	for {
		wait := time.Hour
		if f.err != nil {
			wait = max(time.Until(f.since.Add(f.patience())), 0) + time.Second
		}
		select {
		case m := <-inbox:
			f.note(m)
			switch m.what {
			case replaced:
				clear(held)
				fallthrough
			case put:
				for _, o := range m.objects {
					held[o.key] = o
				}
			case removed:
				delete(held, m.gone)
			}
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
		f.held.Store(int64(len(held)))
		remotes, ds := c.remotes(slices.Collect(maps.Values(held)))
		if d, is := f.problem(time.Now()); is {
			d.Effect = "clusters stay as they are; none is added or removed"
			ds = append(ds, d)
		}
		if f.synced || len(ds) > 0 {
			tell(remotes, ds)
		}
	}
}

// remote is a cluster in a Secret; without REST it cannot be used.
type remote struct {
	Remote
	origin  string
	problem string
}

// remotesOf converts a Secret. What it holds is wiped.
func remotesOf(from runtime.Object) (*object, bool) {
	s, ok := from.(*corev1.Secret)
	if !ok {
		return &object{}, false
	}
	o := &object{key: key{name: s.Name}, version: s.ResourceVersion, created: s.CreationTimestamp.UTC()}
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
	o.body = all
	return o, true
}

// remotes are the clusters that all Secrets say, and what is wrong with others.
// Of several with one name that of the oldest Secret counts.
func (c *Clusters) remotes(held []*object) ([]Remote, []model.Diagnostic) {
	slices.SortFunc(held, func(a, b *object) int {
		if d := a.created.Compare(b.created); d != 0 {
			return d
		}
		return strings.Compare(a.name, b.name)
	})
	var out []Remote
	var ds []model.Diagnostic
	from := map[string]string{c.cfg.Cluster: "the cluster of this watcher"}
	for _, o := range held {
		for _, r := range o.body.([]remote) {
			d := model.Diagnostic{Severity: model.Error, Code: "cluster", Origin: r.origin, Effect: "the cluster is not watched by it"}
			switch first, taken := from[r.Name]; {
			case taken:
				d.Reason, d.Advice = "cluster "+r.Name+" is "+first+" already", "give it another name"
			case r.problem != "":
				d.Reason, d.Advice = r.problem, "write a kubeconfig that holds all that it needs: the server, its certificate authority's certificate, and a token or a client's certificate and key"
			default:
				out = append(out, r.Remote)
			}
			if d.Reason != "" {
				ds = append(ds, d)
			}
			if _, taken := from[r.Name]; !taken {
				from[r.Name] = r.origin
			}
		}
	}
	slices.SortFunc(out, func(a, b Remote) int { return strings.Compare(a.Name, b.Name) })
	return out, ds
}

// selfContained reads a kubeconfig that somebody else has written. One that
// would run a program, or read or send a file of this machine, is refused: who
// may write a Secret may not do that.
func selfContained(kubeconfig []byte) (*rest.Config, error) {
	if len(bytes.TrimSpace(kubeconfig)) == 0 {
		return nil, errors.New("is empty")
	}
	c, err := clientcmd.Load(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("is no kubeconfig: %w", err)
	}
	current, ok := c.Contexts[c.CurrentContext]
	if !ok {
		return nil, errors.New("current-context: names no context")
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
		return nil, fmt.Errorf("is no kubeconfig: %w", err)
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
		{cluster.InsecureSkipTLSVerify, "cluster.insecure-skip-tls-verify", "the credentials would go to anybody; write certificate-authority-data"},
		{!strings.HasPrefix(cluster.Server, "https://"), "cluster.server", "the credentials would go unencrypted; write https://HOST:PORT"},
	} {
		if refused.is {
			return fmt.Errorf("%s: %s", refused.field, refused.reason)
		}
	}
	return nil
}
