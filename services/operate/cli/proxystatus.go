package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store"
)

// proxyView is one stream of a proxy as it is printed whole.
type proxyView struct {
	ID        string     `json:"id"`
	Cluster   string     `json:"cluster,omitempty"`
	Type      string     `json:"type,omitempty"`
	Namespace string     `json:"namespace,omitempty"`
	Group     string     `json:"group,omitempty"`
	UserAgent string     `json:"userAgent,omitempty"`
	Address   string     `json:"address,omitempty"`
	Since     *time.Time `json:"connectedSince,omitempty"`
	Frontend  string     `json:"frontend"`
	Stream    string     `json:"stream"`              // ADS or its one type, delta or not
	Lingering uint32     `json:"lingering,omitempty"` // removed clusters that it still has
	Serving   string     `json:"serving"`             // the version that its frontend serves
	Version   string     `json:"version,omitempty"`   // that it has applied, in all types
	Behind    *lagView   `json:"behind,omitempty"`    // the newest version; absent: it is not
	Types     []typeView `json:"types"`
}

// typeView is one xDS type of a proxy.
type typeView struct {
	Type        string     `json:"type"`   // CDS, EDS, ...
	Status      string     `json:"status"` // SYNCED, STALE, NACK, TOO LARGE, NOT SENT
	Sent        string     `json:"sent,omitempty"`
	Acked       string     `json:"acked,omitempty"`
	Since       *time.Time `json:"since,omitempty"` // of the status
	Resources   uint32     `json:"resources"`
	Nack        *nackView  `json:"nack,omitempty"`
	HeldBack    []string   `json:"heldBack,omitempty"`    // rejected, and not sent until it is changed
	Quarantined []string   `json:"quarantined,omitempty"` // rejected by others like it, and not sent
	Waiting     *time.Time `json:"unanswered,omitempty"`  // since when a response has no answer
	TypeURL     string     `json:"typeUrl"`
}

type nackView struct {
	Message   string     `json:"message"`
	Time      *time.Time `json:"time,omitempty"`
	Resources []string   `json:"resources,omitempty"`
}

// proxyFilter says which proxies are wanted; zero: all.
type proxyFilter struct {
	id              string // or the beginning of it
	frontends       []string
	stale, rejected bool
}

func proxyStatusCommand() *cobra.Command {
	var filter proxyFilter
	cmd := &cobra.Command{
		Use: "proxy-status [PROXY]", Aliases: []string{"ps"}, Args: args(0, 1, ""),
		Short: "Shows what each proxy was sent and has applied",
		Long: `Shows each connected proxy: the version that it has applied in all xDS types, how
far that is behind the newest one, and each type. With the id of a proxy it shows
all there is to say about it; with the beginning of one, those that begin so.

  SYNCED       it has acknowledged the last that it was sent
  STALE        it has not answered yet
  WARMING      it has not answered for its clusters for 5 s: they are not warm
  NACK         it rejected the last that it was sent; the reason stands below
  HELD BACK    it has all but the resources that it rejected
  QUARANTINED  it has all but the resources that proxies like it rejected
  TOO LARGE    there is more than a gRPC client can receive; let it import less
  NOT SENT     it has not asked, or there is nothing for it

Frontends are asked over the bus. One that does not answer is named.`,
		Example: `  meshlog proxy-status --data data/
  meshlog proxy-status --data data/ edge-1
  meshlog proxy-status --data data/ --stale --frontend frontend-1
  meshlog proxy-status --data data/ --rejected -o json`,
	}
	t := targetFlags(cmd)
	format := outputFlag(cmd)
	cmd.Flags().StringSliceVar(&filter.frontends, "frontend", nil, "only proxies of this `frontend`; may be given several times")
	cmd.Flags().BoolVar(&filter.stale, "stale", false, "only proxies that have not applied the newest version")
	cmd.Flags().BoolVar(&filter.rejected, "rejected", false, "only proxies that rejected something, or of which something is held back")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		if len(args) > 0 {
			filter.id = args[0]
		}
		nc, err := t.connect()
		if err != nil {
			return err
		}
		reports, err := t.fleet(nc).Reports(cmd.Context(), bus.Proxies)
		if err != nil {
			return err
		}
		warnSilent(cmd.ErrOrStderr(), reports.Silent, time.Now())
		if len(reports.Frontends) == 0 {
			return errNoFrontend
		}
		chain, err := t.chain(cmd.Context(), nc)
		if err != nil {
			return err
		}
		views, err := viewProxies(cmd.Context(), reports, lagging{chain: chain, now: time.Now()}, filter)
		if err != nil {
			return err
		}
		return out.print(views, func() error { return showProxies(views, reports, filter, time.Now(), out) })
	}
	return cmd
}

var errNoFrontend = errors.New("no frontend answers; is one running, and connected to this bus? `meshlog sources` shows who else is there")

// warnSilent names those who have reported and do not answer.
func warnSilent(w io.Writer, silent []*reportv1.Peer, now time.Time) {
	for _, p := range silent {
		role, name, _ := strings.Cut(p.GetName(), ".")
		fmt.Fprintf(w, "%s %s was heard %s and does not answer: what it knows is missing here.\n", role, name, ago(now.Sub(p.GetHeard().AsTime())))
	}
}

// viewProxies are the streams of the proxies that are wanted.
func viewProxies(ctx context.Context, reports *bus.Reports, lag lagging, f proxyFilter) ([]proxyView, error) {
	views := []proxyView{}
	var known []string
	for _, r := range reports.Frontends {
		known = append(known, r.GetFrontend())
		if r.GetLeaving() || len(f.frontends) > 0 && !slices.Contains(f.frontends, r.GetFrontend()) {
			continue
		}
		for _, p := range r.GetProxies() {
			views = append(views, viewProxy(r, p))
		}
	}
	for _, name := range f.frontends {
		if !slices.Contains(known, name) {
			return nil, notFound("frontend %q: does not report; those that do: %s", name, orNone(known))
		}
	}
	views, err := f.byID(views, known)
	if err != nil {
		return nil, err
	}
	if err := lag.of(ctx, newestHead(reports), views); err != nil {
		return nil, err
	}
	views = slices.DeleteFunc(views, func(v proxyView) bool {
		return f.stale && v.Behind == nil || f.rejected && !v.rejects()
	})
	slices.SortStableFunc(views, func(a, b proxyView) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Frontend, b.Frontend))
	})
	return views, nil
}

// byID leaves the streams of the proxy of that id or, if there is none, of
// those whose ids begin so.
func (f proxyFilter) byID(views []proxyView, frontends []string) ([]proxyView, error) {
	if f.id == "" {
		return views, nil
	}
	is := func(v proxyView) bool { return v.ID == f.id }
	if !slices.ContainsFunc(views, is) {
		is = func(v proxyView) bool { return strings.HasPrefix(v.ID, f.id) }
	}
	views = slices.DeleteFunc(views, func(v proxyView) bool { return !is(v) })
	if len(views) == 0 {
		return nil, notFound("proxy %q: is connected to none of: %s; `meshlog proxy-status` lists those that are", f.id, orNone(frontends))
	}
	return views, nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "no frontend reports"
	}
	return strings.Join(names, ", ")
}

// rejects says whether something is not as the proxy should have it.
func (v *proxyView) rejects() bool {
	return slices.ContainsFunc(v.Types, func(t typeView) bool {
		return t.Nack != nil || len(t.HeldBack) > 0 || len(t.Quarantined) > 0 || t.Status == "TOO LARGE"
	})
}

func viewProxy(r *reportv1.FrontendReport, p *reportv1.ProxyReport) proxyView {
	v := proxyView{
		ID: p.GetId(), Cluster: p.GetCluster(), Type: p.GetType(), Namespace: p.GetNamespace(), Group: p.GetGroup(),
		UserAgent: p.GetUserAgent(), Address: p.GetAddress(), Frontend: r.GetFrontend(),
		Stream: streamName(p), Lingering: p.GetLingering(),
		Serving: store.VersionOf(r.GetServing()).String(), Types: []typeView{},
	}
	if p.GetConnectedSince() != nil {
		v.Since = when(p.GetConnectedSince().AsTime())
	}
	for _, t := range p.GetTypes() {
		v.Types = append(v.Types, viewType(t))
	}
	if a := appliedBy(p); !a.IsZero() {
		v.Version = a.String()
	}
	return v
}

// appliedBy is the version that a proxy has applied in all of its types; zero:
// none so far.
func appliedBy(p *reportv1.ProxyReport) ident.Position {
	var oldest ident.Position
	for i, t := range p.GetTypes() {
		if a := store.VersionOf(t.GetAcked()); i == 0 || a.Less(oldest) {
			oldest = a
		}
	}
	return oldest
}

// streamName is what a stream speaks: "ADS", "delta ADS", "EDS".
func streamName(p *reportv1.ProxyReport) string {
	name := "ADS"
	if p.GetOnly() != "" {
		name = typeName(p.GetOnly())
	}
	if p.GetDelta() {
		name = "delta " + name
	}
	return name
}

func typeName(url string) string {
	if t, ok := ident.ResourceTypeOf(url); ok {
		return t.String()
	}
	return url
}

func viewType(t *reportv1.TypeReport) typeView {
	v := typeView{TypeURL: t.GetTypeUrl(), Type: typeName(t.GetTypeUrl()), Resources: t.GetResources(), HeldBack: t.GetHeldBack(), Quarantined: t.GetQuarantined()}
	if t.GetUnanswered() != nil {
		v.Waiting = when(t.GetUnanswered().AsTime())
	}
	if s := store.VersionOf(t.GetSent()); !s.IsZero() {
		v.Sent = s.String()
	}
	if a := store.VersionOf(t.GetAcked()); !a.IsZero() {
		v.Acked = a.String()
	}
	sent, acked := t.GetSentTime(), t.GetAckedTime()
	switch n := t.GetNack(); {
	case n != nil:
		v.Status = "NACK"
		v.Nack = &nackView{Message: n.GetMessage(), Resources: n.GetResources()}
		if n.GetTime() != nil {
			v.Nack.Time = when(n.GetTime().AsTime())
			v.Since = v.Nack.Time
		}
	case t.GetTooLarge():
		v.Status = "TOO LARGE"
	case t.GetSentVersion() == "":
		v.Status = "NOT SENT"
	case t.GetSentVersion() == t.GetAckedVersion():
		v.Status = "SYNCED"
		if acked != nil {
			v.Since = when(acked.AsTime())
		}
	default:
		v.Status = "STALE"
		if sent != nil {
			v.Since = when(sent.AsTime())
		}
	}
	return v
}
