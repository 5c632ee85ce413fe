// Package names keeps the names of the mesh that an agent answers by DNS (AGT-6), as
// frontends send them: a resource for each service. With a file it has them again after a
// restart, before the first frontend answers.
package names

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	ndsv1 "meshlog.dev/proto/istio/networking/nds/v1"
	"meshlog.dev/services/agent/dns"
	"meshlog.dev/services/internal/seal"
)

// TypeURL is the type of the resources.
const TypeURL = "type.googleapis.com/istio.networking.nds.v1.NameTable"

const (
	// maxFile is how many bytes the file may have: a mesh of 100,000 services.
	maxFile = 64 << 20
	// settle is how long changes are collected before the file is written.
	settle = time.Second
)

// kubernetes is the registry of names that have short forms.
const kubernetes = "Kubernetes"

// Config configures Names.
type Config struct {
	// Namespace is that of the workload: its services have names without a namespace.
	Namespace string
	// File keeps the names over a restart; empty: nothing does.
	File string
	// Apply takes the table after each change.
	Apply func(dns.Table)
	Log   *slog.Logger
}

// Names are the names of the mesh. It is safe for concurrent use.
type Names struct {
	Config

	mu      sync.Mutex
	all     map[string]service
	changed chan struct{} // has a value if the file is to be written
}

// service has the names of one service.
type service struct {
	resource *discoveryv3.Resource
	table    *ndsv1.NameTable
}

// New returns the names in the file, or none. A file that cannot be read is reported, and
// written anew.
func New(c Config) *Names {
	n := &Names{Config: c, all: map[string]service{}, changed: make(chan struct{}, 1)}
	if c.File == "" {
		return n
	}
	b, err := seal.ReadAtMost(c.File, maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return n
	}
	saved := new(discoveryv3.DeltaDiscoveryResponse)
	if err == nil {
		err = proto.Unmarshal(b, saved)
	}
	if err == nil {
		err = n.Take(saved)
	}
	if err != nil {
		c.Log.Warn("cannot read the names of the mesh from the state directory; DNS forwards every query until a frontend sends them", "file", c.File, "error", err)
	}
	return n
}

// Versions returns the version of each resource.
func (n *Names) Versions() map[string]string {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := make(map[string]string, len(n.all))
	for name, s := range n.all {
		all[name] = s.resource.GetVersion()
	}
	return all
}

// Take takes a response of a frontend. With an error nothing has changed.
func (n *Names) Take(resp *discoveryv3.DeltaDiscoveryResponse) error {
	read := make(map[string]service, len(resp.GetResources()))
	for _, r := range resp.GetResources() {
		s := service{r, new(ndsv1.NameTable)}
		if err := r.GetResource().UnmarshalTo(s.table); err != nil {
			return fmt.Errorf("the names of %s: %w", r.GetName(), err)
		}
		for host, i := range s.table.GetTable() {
			for _, ip := range i.GetIps() {
				if _, err := netip.ParseAddr(ip); err != nil {
					return fmt.Errorf("the host %s: %w", host, err)
				}
			}
		}
		read[r.GetName()] = s
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, s := range read {
		n.all[name] = s
	}
	for _, name := range resp.GetRemovedResources() {
		delete(n.all, name)
	}
	n.Apply(n.table())
	select {
	case n.changed <- struct{}{}:
	default:
	}
	return nil
}

// table returns the table of the names. Full names win over short ones. n.mu is locked.
func (n *Names) table() dns.Table {
	t := make(dns.Table, 4*len(n.all))
	type short struct {
		name string
		ips  []netip.Addr
	}
	var shorts []short
	for _, s := range n.all {
		for host, i := range s.table.GetTable() {
			ips := make([]netip.Addr, len(i.GetIps()))
			for k, ip := range i.GetIps() {
				ips[k], _ = netip.ParseAddr(ip) // Take has read it
			}
			t[absolute(host)] = ips
			if i.GetRegistry() != kubernetes || i.GetShortname() == "" {
				continue
			}
			name := i.GetShortname() + "." + i.GetNamespace()
			shorts = append(shorts, short{name, ips}, short{name + ".svc", ips})
			if i.GetNamespace() == n.Namespace {
				shorts = append(shorts, short{i.GetShortname(), ips})
			}
		}
	}
	for _, s := range shorts {
		if _, full := t[absolute(s.name)]; !full {
			t[absolute(s.name)] = s.ips
		}
	}
	return t
}

func absolute(host string) string { return strings.ToLower(strings.TrimSuffix(host, ".")) + "." }

// Run writes the file after changes until ctx is done.
func (n *Names) Run(ctx context.Context) error {
	trouble := ""
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-n.changed:
		}
		if n.File == "" {
			continue
		}
		timer := time.NewTimer(settle)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
		if err := n.save(); err == nil {
			trouble = ""
		} else if err.Error() != trouble {
			trouble = err.Error()
			n.Log.Warn("cannot write the names of the mesh; after a restart DNS forwards every query until a frontend answers", "error", err)
		}
	}
}

func (n *Names) save() error {
	n.mu.Lock()
	all := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: TypeURL}
	for _, s := range n.all {
		all.Resources = append(all.Resources, s.resource)
	}
	n.mu.Unlock()
	slices.SortFunc(all.GetResources(), func(a, b *discoveryv3.Resource) int { return strings.Compare(a.GetName(), b.GetName()) })
	b, err := proto.Marshal(all)
	if err != nil {
		return err
	}
	return seal.WriteFile(n.File, b)
}
