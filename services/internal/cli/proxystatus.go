package cli

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/store"
)

// proxyView is a proxy as it is printed whole.
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
	Types     []typeView `json:"types"`
}

// typeView is one xDS type of a proxy.
type typeView struct {
	Type      string     `json:"type"`   // CDS, EDS, ...
	Status    string     `json:"status"` // SYNCED, STALE, NACK, TOO LARGE, NOT SENT
	Sent      string     `json:"sent,omitempty"`
	Acked     string     `json:"acked,omitempty"`
	Since     *time.Time `json:"since,omitempty"` // of the status
	Resources uint32     `json:"resources"`
	Nack      *nackView  `json:"nack,omitempty"`
	HeldBack  []string   `json:"heldBack,omitempty"`   // rejected, and not sent until it is changed
	Waiting   *time.Time `json:"unanswered,omitempty"` // since when a response has no answer
	TypeURL   string     `json:"typeUrl"`
}

type nackView struct {
	Message   string     `json:"message"`
	Time      *time.Time `json:"time,omitempty"`
	Resources []string   `json:"resources,omitempty"`
}

// xdsTypes are the types of a table's columns, in the order in which they are
// served.
var xdsTypes = []struct{ name, url string }{
	{"CDS", "type.googleapis.com/envoy.config.cluster.v3.Cluster"},
	{"EDS", "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"},
	{"LDS", "type.googleapis.com/envoy.config.listener.v3.Listener"},
	{"RDS", "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"},
}

func proxyStatusCommand() *cobra.Command {
	var frontends []string
	cmd := &cobra.Command{
		Use: "proxy-status [PROXY]", Aliases: []string{"ps"}, Args: args(0, 1, ""),
		Short: "Shows what each proxy was sent and has applied",
		Long: `Shows each connected proxy: what it was sent last of each xDS type, and whether
it has acknowledged that.

  SYNCED    it has acknowledged the last that it was sent
  STALE     it has not answered yet
  NACK      it refused; the reason stands below
  TOO LARGE there is more than a gRPC client can receive; let it import less
  NOT SENT  it has not asked, or there is nothing for it

Frontends are asked over the bus. One that does not answer is left out.`,
		Example: `  meshlog proxy-status --data data/
  meshlog proxy-status --data data/ --frontend frontend-1 -o json`,
	}
	t := targetFlags(cmd)
	format := outputFlag(cmd)
	cmd.Flags().StringSliceVar(&frontends, "frontend", nil, "only proxies of this `frontend`; may be given several times")
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		defer func() { err = errors.Join(err, t.close()) }()
		out, err := newOutput(cmd, *format)
		if err != nil {
			return err
		}
		nc, err := t.connect()
		if err != nil {
			return err
		}
		reports, err := t.fleet(nc).Reports(cmd.Context(), false)
		if err != nil {
			return err
		}
		if len(reports.Frontends) == 0 {
			return errors.New("no frontend reports; is one running, and connected to this bus?")
		}
		views, err := viewProxies(reports.Frontends, frontends, args)
		if err != nil {
			return err
		}
		return out.print(views, func() error { return showProxies(views, time.Now(), out) })
	}
	return cmd
}

// viewProxies are the proxies of the frontends that are wanted (none: all).
func viewProxies(reports []*reportv1.FrontendReport, frontends, proxies []string) ([]proxyView, error) {
	views := []proxyView{}
	var known []string
	for _, r := range reports {
		known = append(known, r.GetFrontend())
		if r.GetLeaving() || len(frontends) > 0 && !slices.Contains(frontends, r.GetFrontend()) {
			continue
		}
		for _, p := range r.GetProxies() {
			if len(proxies) == 0 || slices.Contains(proxies, p.GetId()) {
				views = append(views, viewProxy(r, p))
			}
		}
	}
	for _, f := range frontends {
		if !slices.Contains(known, f) {
			return nil, notFound("frontend %q: does not report; those that do: %s", f, orNone(known))
		}
	}
	if len(proxies) > 0 && len(views) == 0 {
		return nil, notFound("proxy %q: is connected to none of: %s", proxies[0], orNone(known))
	}
	slices.SortFunc(views, func(a, b proxyView) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.Frontend, b.Frontend))
	})
	return views, nil
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "no frontend reports"
	}
	return strings.Join(names, ", ")
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
	return v
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
	for _, x := range xdsTypes {
		if x.url == url {
			return x.name
		}
	}
	return url
}

func viewType(t *reportv1.TypeReport) typeView {
	v := typeView{TypeURL: t.GetTypeUrl(), Type: typeName(t.GetTypeUrl()), Resources: t.GetResources(), HeldBack: t.GetHeldBack()}
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

func showProxies(views []proxyView, now time.Time, out *output) error {
	t := table{head: []string{"PROXY", "TYPE", "GROUP", "FRONTEND", "STREAM"}}
	for _, x := range xdsTypes {
		t.head = append(t.head, x.name)
	}
	for _, v := range views {
		row := []any{v.ID, v.Type, v.Group, v.Frontend, v.Stream}
		for _, x := range xdsTypes {
			i := slices.IndexFunc(v.Types, func(t typeView) bool { return t.TypeURL == x.url })
			switch {
			case i < 0 && strings.Contains(v.Stream, "ADS"):
				row = append(row, cell{"NOT SENT", faint})
				continue
			case i < 0: // not a type of this stream
				row = append(row, "-")
				continue
			}
			row = append(row, v.Types[i].cell(now))
		}
		t.add(row...)
	}
	if len(views) == 0 {
		return out.line("No proxy is connected.")
	}
	if err := out.table(&t, true); err != nil {
		return err
	}
	for _, v := range views {
		for _, x := range v.Types {
			for _, note := range x.notes(v.ID, now) {
				if err := out.line("\n%s", note); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// slowAnswer is after what time it is worth a line that CDS is not answered.
const slowAnswer = 5 * time.Second

// notes are what does not fit into the table.
func (v typeView) notes(proxy string, now time.Time) (notes []string) {
	if v.Nack != nil {
		names := ""
		if len(v.Nack.Resources) > 0 {
			names = " (" + strings.Join(v.Nack.Resources, ", ") + ")"
		}
		notes = append(notes, fmt.Sprintf("%s refused %s%s: %s", proxy, v.Type, names, v.Nack.Message))
	}
	if len(v.HeldBack) > 0 {
		notes = append(notes, fmt.Sprintf("held back from %s, of %s, until it is changed: %s", proxy, v.Type, strings.Join(v.HeldBack, ", ")))
	}
	if v.Waiting != nil && v.Type == "CDS" && now.Sub(*v.Waiting) >= slowAnswer {
		notes = append(notes, fmt.Sprintf("%s is warming: CDS unACKed for %d s", proxy, int(now.Sub(*v.Waiting).Seconds())))
	}
	return notes
}

// cell says it in short: status, version, since when.
func (v typeView) cell(now time.Time) cell {
	text, color := v.Status, green
	switch v.Status {
	case "NOT SENT":
		color = faint
	case "SYNCED":
		text += " " + v.Acked
	case "STALE":
		text, color = fmt.Sprintf("STALE %s, acked %s", v.Sent, cmp.Or(v.Acked, "nothing")), yellow
	case "TOO LARGE":
		color = red
	case "NACK":
		text, color = fmt.Sprintf("NACK %s, acked %s", v.Sent, cmp.Or(v.Acked, "nothing")), red
	}
	if v.Since != nil {
		text += " (" + age(now.Sub(*v.Since)) + ")"
	}
	return cell{text, color}
}

// age is a duration in its one largest unit.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}
