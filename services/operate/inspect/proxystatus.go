package inspect

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/store"
)

// ProxyView is one stream of a proxy.
type ProxyView struct {
	ID        string         `json:"id"`
	Cluster   string         `json:"cluster,omitempty"`
	Type      string         `json:"type,omitempty"`
	Namespace string         `json:"namespace,omitempty"`
	Group     string         `json:"group,omitempty"`
	UserAgent string         `json:"userAgent,omitempty"`
	Address   string         `json:"address,omitempty"`
	Since     time.Time      `json:"connectedSince,omitzero"`
	Identity  string         `json:"identity,omitempty"` // absent: its connection shows no certificate
	Serial    string         `json:"certificateSerial,omitempty"`
	Ends      time.Time      `json:"certificateEnds,omitzero"`
	Frontend  string         `json:"frontend"`
	Stream    string         `json:"stream"`              // ADS or its one type, delta or not
	Lingering uint32         `json:"lingering,omitempty"` // removed clusters that it still has
	Serving   ident.Position `json:"serving"`             // the version that its frontend serves
	Version   ident.Position `json:"version,omitzero"`    // that it has applied, in all types
	Behind    *lagView       `json:"behind,omitempty"`    // absent: it has the newest version
	Types     []typeView     `json:"types"`
	Security  *securityView  `json:"security,omitempty"` // only with the id of the proxy
	// SecurityError is why Security is not known.
	SecurityError string `json:"securityError,omitempty"`
}

// typeView is one xDS type of a stream.
type typeView struct {
	Type        string         `json:"type"`   // CDS, EDS, ...
	Status      string         `json:"status"` // SYNCED, STALE, NACK, TOO LARGE, NOT SENT
	Sent        ident.Position `json:"sent,omitzero"`
	Acked       ident.Position `json:"acked,omitzero"`
	Since       time.Time      `json:"since,omitzero"` // of the status
	Resources   uint32         `json:"resources"`
	Nack        *nackView      `json:"nack,omitempty"`
	HeldBack    []string       `json:"heldBack,omitempty"`     // rejected, and not sent until they change
	Keys        []string       `json:"waitsForKeys,omitempty"` // Secrets for whose private keys the response waits
	Quarantined []string       `json:"quarantined,omitempty"`  // rejected by similar proxies, and not sent
	// Unknown are Secrets that it asked for and that are not for it, or do not exist, and
	// MissingKeys those whose private keys have not come.
	Unknown     []string  `json:"unknownSecrets,omitempty"`
	MissingKeys []string  `json:"missingKeys,omitempty"`
	Waiting     time.Time `json:"unanswered,omitzero"` // when a response was sent that has no answer
	TypeURL     string    `json:"typeUrl"`

	anonymous bool // the connection shows no certificate
}

type nackView struct {
	Message   string    `json:"message"`
	Time      time.Time `json:"time,omitzero"`
	Resources []string  `json:"resources,omitempty"`
}

// proxyFilter selects streams; the zero filter selects all.
type proxyFilter struct {
	id              string // or its beginning
	frontends       []string
	stale, rejected bool
}

// ProxyStatus returns the command `proxy-status`.
func ProxyStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use: "proxy-status [PROXY]", Aliases: []string{"ps"}, Args: command.Args(0, 1, ""),
		Short: "Show what each proxy was sent and has applied",
		Long: `Show each connected proxy: the version that it has applied in all xDS types, how
far it is behind the newest version, and the status of each type. With the id of
a proxy, show its details; with the beginning of an id, show the proxies whose
ids begin so.

  SYNCED       it has acknowledged the last response
  STALE        it has not answered the last response yet
  WARMING      it has not answered CDS for 5 s: new clusters are not warm yet
  NACK         it rejected the last response; the reason is below the table
  HELD BACK    it has everything except the resources that it rejected
  QUARANTINED  it has everything except resources that similar proxies rejected
  LACKS        it has asked for secrets that it does not get
  TOO LARGE    the response exceeds what a gRPC client can receive; import less
  NOT SENT     it has not asked, or there is nothing to send

The details name the identity and the certificate that the connection of the proxy
shows to its frontend. Those of a sidecar or a gateway also have the mode of mutual TLS
of each inbound port with the PeerAuthentication that sets it, and the policies in each
slot, in the order in which the slots decide, at the version that its frontend serves. If
that version cannot be read, they say why, and show the rest.

A second table shows the clients of MCP-over-xDS, such as an istiod, with how many of the
types that they read are in which state.

The command asks the frontends over the bus, and names each that does not answer.`,
		Example: `  meshlog proxy-status --data data/
  meshlog proxy-status --data data/ edge-1
  meshlog proxy-status --data data/ --stale --frontend frontend-1
  meshlog proxy-status --data data/ --rejected -o json`,
	}
	var filter proxyFilter
	f := cmd.Flags()
	f.StringSliceVar(&filter.frontends, "frontend", nil, "only proxies of this `frontend`; may be given several times")
	f.BoolVar(&filter.stale, "stale", false, "only proxies that have not applied the newest version")
	f.BoolVar(&filter.rejected, "rejected", false, "only proxies that rejected a resource, from which one is held back, or that lack a secret")
	return command.Live(cmd, func(ctx context.Context, e *command.Env, args []string) error {
		if len(args) > 0 {
			filter.id = args[0]
		}
		reports, err := e.Reports(ctx, bus.Proxies)
		if err != nil {
			return err
		}
		e.WarnSilent(reports)
		if len(reports.Frontends) == 0 {
			return command.ErrNoFrontend
		}
		chain, err := e.Chain(ctx)
		if err != nil {
			return err
		}
		views, unread, err := viewProxies(reports, filter, chain.History(ctx), time.Now())
		if err != nil {
			return err
		}
		sayUnread(e, unread)
		if filter.one(views) && !views[0].isSink() {
			addSecurity(ctx, e, views)
		}
		e.Print(views, func() { showProxies(views, reports, filter, time.Now(), e.Output) })
		return nil
	})
}

// sayUnread says why the count of versions by which proxies are behind ends early; nil: it
// does not.
func sayUnread(e *command.Env, unread error) {
	if unread != nil {
		fmt.Fprintf(e.Stderr, "Versions are counted only as far back as they can be read: %v\n", unread)
	}
}

// viewProxies returns the selected streams; chain is the version chain, newest
// first. unread is why it could not be read as far as needed.
func viewProxies(
	reports *bus.Reports, f proxyFilter, chain iter.Seq2[*store.Manifest, error], now time.Time,
) (views []ProxyView, unread, err error) {
	views = []ProxyView{}
	var known []string
	for _, r := range reports.Frontends {
		known = append(known, r.GetFrontend())
		if r.GetLeaving() || len(f.frontends) > 0 && !slices.Contains(f.frontends, r.GetFrontend()) {
			continue
		}
		for _, p := range r.GetProxies() {
			views = append(views, viewProxy(r, p))
		}
		for _, p := range r.GetSinks() {
			v := viewProxy(r, p)
			v.Stream = sinkStream
			views = append(views, v)
		}
	}
	for _, name := range f.frontends {
		if !slices.Contains(known, name) {
			return nil, nil, command.NotFound("frontend %q: does not answer; the frontends that do: %s", name,
				cmp.Or(strings.Join(known, ", "), "none"))
		}
	}
	if views, err = f.byID(views, known); err != nil {
		return nil, nil, err
	}
	unread = setLag(views, command.NewestHead(reports), chain, now)
	views = slices.DeleteFunc(views, func(v ProxyView) bool {
		return f.stale && v.Behind == nil || f.rejected && !v.rejects() && !v.lacks()
	})
	slices.SortStableFunc(views, func(a, b ProxyView) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Frontend, b.Frontend))
	})
	return views, unread, nil
}

// byID returns the streams of the proxy with the id or, if there is none, of the
// proxies whose ids begin with it.
func (f proxyFilter) byID(views []ProxyView, frontends []string) ([]ProxyView, error) {
	if f.id == "" {
		return views, nil
	}
	is := func(v ProxyView) bool { return v.ID == f.id }
	if !slices.ContainsFunc(views, is) {
		is = func(v ProxyView) bool { return strings.HasPrefix(v.ID, f.id) }
	}
	views = slices.DeleteFunc(views, func(v ProxyView) bool { return !is(v) })
	if len(views) == 0 {
		return nil, command.NotConnected(f.id, frontends)
	}
	return views, nil
}

// one reports whether the filter names the one proxy of the streams by its whole id.
func (f proxyFilter) one(views []ProxyView) bool {
	return f.id != "" && len(views) > 0 && views[0].ID == f.id && views[len(views)-1].ID == f.id
}

// lacks reports whether the proxy has asked for a secret that it does not get.
func (v *ProxyView) lacks() bool {
	return slices.ContainsFunc(v.Types, func(t typeView) bool { return t.lacks() > 0 })
}

// rejects reports whether something is not sent to the proxy that it should have.
func (v *ProxyView) rejects() bool {
	return slices.ContainsFunc(v.Types, func(t typeView) bool {
		return t.Nack != nil || len(t.HeldBack) > 0 || len(t.Quarantined) > 0 || t.Status == "TOO LARGE"
	})
}

func viewProxy(r *reportv1.FrontendReport, p *reportv1.ProxyReport) ProxyView {
	v := ProxyView{
		ID: p.GetId(), Cluster: p.GetCluster(), Type: p.GetType(), Namespace: p.GetNamespace(), Group: p.GetGroup(),
		UserAgent: p.GetUserAgent(), Address: p.GetAddress(), Since: command.Stamp(p.GetConnectedSince().AsTime()),
		Frontend: r.GetFrontend(), Stream: streamName(p), Lingering: p.GetLingering(),
		Serving: store.VersionOf(r.GetServing()), Types: []typeView{},
		Identity: p.GetIdentity(), Serial: p.GetCertificateSerial(), Ends: command.Stamp(p.GetCertificateEnds().AsTime()),
	}
	for i, t := range p.GetTypes() {
		w := viewType(t)
		w.anonymous = v.Identity == ""
		v.Types = append(v.Types, w)
		if a := store.VersionOf(t.GetAcked()); i == 0 || a.Less(v.Version) {
			v.Version = a
		}
	}
	return v
}

// streamName returns the protocol of a stream: "ADS", "delta ADS", "EDS".
func streamName(p *reportv1.ProxyReport) string {
	name := "ADS"
	if p.GetOnly() != "" {
		name = command.TypeName(p.GetOnly())
	}
	if p.GetDelta() {
		name = "delta " + name
	}
	return name
}

func viewType(t *reportv1.TypeReport) typeView {
	v := typeView{
		TypeURL: t.GetTypeUrl(), Type: command.TypeName(t.GetTypeUrl()), Resources: t.GetResources(), HeldBack: t.GetHeldBack(), Quarantined: t.GetQuarantined(), Keys: t.GetWaitsForKeys(),
		Unknown: t.GetUnknownSecrets(), MissingKeys: t.GetMissingKeys(),
		Waiting: command.Stamp(t.GetUnanswered().AsTime()), Sent: store.VersionOf(t.GetSent()), Acked: store.VersionOf(t.GetAcked()),
	}
	switch n := t.GetNack(); {
	case n != nil:
		v.Status, v.Since = "NACK", command.Stamp(n.GetTime().AsTime())
		v.Nack = &nackView{Message: n.GetMessage(), Resources: n.GetResources(), Time: v.Since}
	case t.GetTooLarge():
		v.Status = "TOO LARGE"
	case t.GetSentVersion() == "":
		v.Status = "NOT SENT"
	case t.GetSentVersion() == t.GetAckedVersion():
		v.Status, v.Since = "SYNCED", command.Stamp(t.GetAckedTime().AsTime())
	default:
		v.Status, v.Since = "STALE", command.Stamp(t.GetSentTime().AsTime())
	}
	return v
}
