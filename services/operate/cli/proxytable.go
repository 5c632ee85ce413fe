package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
)

// How much of a fleet's problems stands below its table.
const (
	maxNotes = 10 // problems
	maxNamed = 3  // names in one
)

// slowAnswer is after what time it is worth a word that CDS is not answered.
const slowAnswer = 5 * time.Second

func showProxies(views []proxyView, reports *bus.Reports, f proxyFilter, now time.Time, out *output) error {
	if len(views) == 0 {
		return showNoProxies(reports, f, out)
	}
	if f.id != "" && views[0].ID == f.id && views[len(views)-1].ID == f.id {
		return showProxy(views, now, out)
	}
	if err := proxyTable(views, now, out); err != nil {
		return err
	}
	return out.line("\n%s", inShort(views, reports))
}

// proxyTable shows streams, each in a line, and what is wrong with them.
func proxyTable(views []proxyView, now time.Time, out *output) error {
	t := table{head: []string{"PROXY", "TYPE", "FRONTEND", "STREAM", "VERSION", "BEHIND"}}
	for x := range ident.ResourceTypes {
		t.head = append(t.head, x.String())
	}
	for _, v := range views {
		row := []any{out.cut(v.ID, 48), v.Type, out.cut(v.Frontend, 24), v.Stream, v.Version, v.Behind.cell()}
		for x := range ident.ResourceTypes {
			row = append(row, v.cell(x.URL(), now))
		}
		t.add(row...)
	}
	if err := out.table(&t, true); err != nil {
		return err
	}
	notes := problems(views, now)
	if more := len(notes) - maxNotes; more > 0 {
		notes = append(notes[:maxNotes:maxNotes], fmt.Sprintf("and %s; `meshlog proxy-status PROXY` shows those of one proxy", plural(more, "more problem", "more problems")))
	}
	if len(notes) == 0 {
		return nil
	}
	return out.line("\n%s", strings.Join(notes, "\n"))
}

func showNoProxies(reports *bus.Reports, f proxyFilter, out *output) error {
	if f.stale || f.rejected {
		return out.line("No proxy is like that: %s.", strings.TrimSuffix(inShort(nil, reports), "."))
	}
	var names []string
	for _, r := range reports.Frontends {
		names = append(names, r.GetFrontend())
	}
	return out.line("No proxy is connected; frontends that answer: %s. Envoy finds one by xds_cluster in its bootstrap.", strings.Join(names, ", "))
}

// inShort is a fleet in one sentence.
func inShort(views []proxyView, reports *bus.Reports) string {
	proxies, frontends := map[string]bool{}, map[string]bool{}
	synced, behind, rejecting := 0, 0, 0
	for _, v := range views {
		proxies[v.ID], frontends[v.Frontend] = true, true
		switch {
		case v.rejects():
			rejecting++
		case v.Behind != nil:
			behind++
		default:
			synced++
		}
	}
	if views == nil {
		n := 0
		for _, r := range reports.Frontends {
			n += int(r.GetStreams())
		}
		return fmt.Sprintf("%s on %s are as they should be.", plural(n, "stream", "streams"), plural(len(reports.Frontends), "frontend", "frontends"))
	}
	text := fmt.Sprintf("%s on %s", plural(len(proxies), "proxy", "proxies"), plural(len(frontends), "frontend", "frontends"))
	if len(views) > len(proxies) {
		text += fmt.Sprintf(", %d streams", len(views))
	}
	text += fmt.Sprintf(": %d in sync", synced)
	if behind > 0 {
		text += fmt.Sprintf(", %d behind", behind)
	}
	if rejecting > 0 {
		text += fmt.Sprintf(", %d with something rejected", rejecting)
	}
	if head := newestHead(reports); !head.IsZero() {
		text += fmt.Sprintf(". The newest version is %s", head)
	}
	return text + "."
}

func (l *lagView) cell() cell {
	if l == nil {
		return cell{"-", ""}
	}
	return cell{l.String(), yellow}
}

// cell is one type of a stream in short.
func (v *proxyView) cell(url string, now time.Time) cell {
	i := slices.IndexFunc(v.Types, func(t typeView) bool { return t.TypeURL == url })
	switch {
	case i >= 0:
		return v.Types[i].cell(now)
	case strings.HasSuffix(v.Stream, "ADS"):
		return cell{"NOT SENT", faint}
	}
	return cell{"-", ""} // not a type of this stream
}

// cell says it in short: the status, and for how long where that matters.
func (v *typeView) cell(now time.Time) cell {
	c := cell{v.Status, yellow}
	switch {
	case v.Status == "NACK", v.Status == "TOO LARGE":
		c.color = red
	case len(v.HeldBack) > 0:
		return cell{fmt.Sprintf("HELD BACK %d", len(v.HeldBack)), red}
	case v.warms(now):
		return cell{"WARMING " + age(now.Sub(*v.Waiting)), yellow}
	case v.Status == "STALE":
	case len(v.Quarantined) > 0:
		return cell{fmt.Sprintf("QUARANTINED %d", len(v.Quarantined)), yellow}
	case v.Status == "NOT SENT":
		return cell{v.Status, faint}
	default:
		return cell{v.Status, green}
	}
	if v.Since != nil {
		c.text += " " + age(now.Sub(*v.Since))
	}
	return c
}

func (v *typeView) warms(now time.Time) bool {
	return v.Waiting != nil && v.Type == "CDS" && now.Sub(*v.Waiting) >= slowAnswer
}

// problem is what is wrong with one or many proxies alike.
type proxyProblem struct {
	what    string
	proxies []string
}

// problems are what does not fit into the table, each once for all whom it
// concerns; those of most proxies first.
func problems(views []proxyView, now time.Time) []string {
	var all []*proxyProblem
	byWhat := map[string]*proxyProblem{}
	for _, v := range views {
		for _, t := range v.Types {
			for _, what := range t.problems(now) {
				p := byWhat[what]
				if p == nil {
					p = &proxyProblem{what: what}
					byWhat[what] = p
					all = append(all, p)
				}
				p.proxies = append(p.proxies, v.ID)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *proxyProblem) int { return cmp.Compare(len(b.proxies), len(a.proxies)) })
	var notes []string
	for _, p := range all {
		notes = append(notes, some(p.proxies)+": "+p.what)
	}
	return notes
}

func (v *typeView) problems(now time.Time) (all []string) {
	if v.Nack != nil {
		names := ""
		if len(v.Nack.Resources) > 0 {
			names = " (" + some(v.Nack.Resources) + ")"
		}
		all = append(all, fmt.Sprintf("%s rejected%s: %s", v.Type, names, strings.TrimSpace(v.Nack.Message)))
	}
	if len(v.HeldBack) > 0 {
		all = append(all, fmt.Sprintf("%s held back until it is changed: %s", v.Type, some(v.HeldBack)))
	}
	if len(v.Quarantined) > 0 {
		all = append(all, fmt.Sprintf("%s in quarantine (`meshlog diagnostics` says why): %s", v.Type, some(v.Quarantined)))
	}
	if v.warms(now) {
		all = append(all, fmt.Sprintf("warming: CDS unACKed for %d s", int(now.Sub(*v.Waiting).Seconds())))
	}
	if v.Status == "TOO LARGE" {
		all = append(all, v.Type+" not sent: there is more than a gRPC client can receive; let it import less")
	}
	return all
}

// some names the first of many.
func some(names []string) string {
	if more := len(names) - maxNamed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// showProxy shows the streams of one proxy with all there is to say.
func showProxy(views []proxyView, now time.Time, out *output) error {
	for i, v := range views {
		if i > 0 {
			if err := out.line(""); err != nil {
				return err
			}
		}
		if err := v.show(now, out); err != nil {
			return err
		}
	}
	return nil
}

func (v *proxyView) show(now time.Time, out *output) error {
	facts := table{head: []string{"", ""}}
	fact := func(name, text string) {
		if text != "" {
			facts.add(cell{name, faint}, text)
		}
	}
	fact("proxy", v.ID)
	is := v.Type
	if v.Namespace != "" {
		is += ", namespace " + v.Namespace
	}
	fact("is", is)
	fact("cluster", v.Cluster)
	fact("group", v.Group)
	client := cmp.Or(v.UserAgent, "unknown")
	if v.Address != "" {
		client += " at " + v.Address
	}
	if v.Since != nil {
		client += ", connected " + ago(now.Sub(*v.Since))
	}
	fact("client", client)
	fact("frontend", fmt.Sprintf("%s, %s, serves %s", v.Frontend, v.Stream, v.Serving))
	applied := cmp.Or(v.Version, "none so far")
	if v.Version != "" && v.Behind == nil {
		applied += ", the newest"
	} else if v.Version != "" {
		applied += ", behind by " + v.Behind.String()
	}
	fact("applied", applied)
	if v.Lingering > 0 {
		fact("lingering", plural(int(v.Lingering), "cluster that is gone stays", "clusters that are gone stay")+" until nothing uses it")
	}
	if err := out.table(&facts, false); err != nil {
		return err
	}
	t := table{head: []string{"TYPE", "STATUS", "SENT", "APPLIED", "SINCE", "RESOURCES"}}
	for _, x := range v.Types {
		since := ""
		if x.Since != nil {
			since = clock(*x.Since)
		}
		t.add(x.Type, x.cell(now), x.Sent, x.Acked, since, x.Resources)
	}
	if len(t.rows) == 0 {
		return out.line("\nIt has asked for nothing so far.")
	}
	if err := out.line(""); err != nil {
		return err
	}
	if err := out.table(&t, true); err != nil {
		return err
	}
	for _, x := range v.Types {
		for _, note := range x.details(now) {
			if err := out.line("\n%s", note); err != nil {
				return err
			}
		}
	}
	return nil
}

// details are problems with all names.
func (v *typeView) details(now time.Time) (all []string) {
	if v.Nack != nil {
		text := v.Type + " rejected"
		if v.Nack.Time != nil {
			text += " at " + clock(*v.Nack.Time)
		}
		if len(v.Nack.Resources) > 0 {
			text += ", " + strings.Join(v.Nack.Resources, ", ")
		}
		all = append(all, text+":\n  "+strings.ReplaceAll(strings.TrimSpace(v.Nack.Message), "\n", "\n  "))
	}
	for _, list := range []struct {
		what  string
		names []string
	}{
		{v.Type + " held back until it is changed", v.HeldBack},
		{v.Type + " in quarantine (`meshlog diagnostics` says why)", v.Quarantined},
	} {
		if len(list.names) > 0 {
			all = append(all, list.what+":\n  "+strings.Join(list.names, "\n  "))
		}
	}
	if v.warms(now) {
		all = append(all, fmt.Sprintf("warming: CDS unACKed for %d s; a cluster there has no endpoints, names that do not resolve, or waits for a secret",
			int(now.Sub(*v.Waiting).Seconds())))
	}
	return all
}
