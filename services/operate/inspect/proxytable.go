package inspect

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/xds/secret"
	"meshlog.dev/services/operate/command"
)

// maxNotes is the number of problems below a table.
const maxNotes = 10

// slowAnswer is how long CDS may stay unanswered before the proxy counts as
// warming.
const slowAnswer = 5 * time.Second

func showProxies(views []ProxyView, reports *bus.Reports, f proxyFilter, now time.Time, out *command.Output) {
	var names []string
	var all uint32
	for _, r := range reports.Frontends {
		names, all = append(names, r.GetFrontend()), all+r.GetStreams()
	}
	switch {
	case len(views) == 0 && all > 0 && (f.stale || f.rejected):
		out.Line("No proxy matches the filters, of %s on %s.", streams(all), command.Plural(len(names), "frontend", "frontends"))
	case len(views) == 0:
		out.Line("No proxy is connected to any frontend (%s). Envoy finds one by xds_cluster in its bootstrap.", strings.Join(names, ", "))
	case f.one(views):
		for i, v := range views {
			if i > 0 {
				out.Line("")
			}
			v.show(now, out)
			if v.Security != nil {
				v.Security.show(out)
			} else if v.SecurityError != "" {
				out.Line("\nPorts and policies are not known: %s", v.SecurityError)
			}
		}
	default:
		proxies, sinks := splitSinks(views)
		if len(proxies) > 0 {
			proxyTable(proxies, now, out)
			out.Line("\n%s", summary(proxies, command.NewestHead(reports)))
		}
		if len(proxies) > 0 && len(sinks) > 0 {
			out.Line("")
		}
		if len(sinks) > 0 {
			sinkTable(sinks, now, out)
		}
	}
}

// proxyTable shows each stream in a line, and the problems below the table.
func proxyTable(views []ProxyView, now time.Time, out *command.Output) {
	t := command.Rows{Head: []string{"PROXY", "TYPE", "FRONTEND", "STREAM", "VERSION", "BEHIND"}}
	var types []ident.ResourceType
	for x := range ident.ResourceTypes {
		if !optional(x) || slices.ContainsFunc(views, func(v ProxyView) bool { return v.index(x.URL()) >= 0 }) {
			types = append(types, x)
			t.Head = append(t.Head, x.String())
		}
	}
	for _, v := range views {
		behind := command.Cell{Text: v.Behind.String()}
		if v.Behind != nil {
			behind.Color = command.Yellow
		}
		row := []any{out.Cut(v.ID, 48), v.Type, out.Cut(v.Frontend, 24), v.Stream, v.Version, behind}
		for _, x := range types {
			row = append(row, v.cell(x.URL(), now))
		}
		t.Add(row...)
	}
	out.Rows(&t)
	showProblems(views, now, out)
}

// showProblems shows the problems below a table.
func showProblems(views []ProxyView, now time.Time, out *command.Output) {
	notes := problems(views, now)
	if more := len(notes) - maxNotes; more > 0 {
		notes = append(notes[:maxNotes:maxNotes], fmt.Sprintf("and %s; `meshlog proxy-status PROXY` shows those of one proxy", command.Plural(more, "more problem", "more problems")))
	}
	out.Notes(notes)
}

// summary counts the streams of a fleet in one sentence.
func summary(views []ProxyView, head ident.Position) string {
	proxies, frontends := map[string]bool{}, map[string]bool{}
	synced, behind, rejecting, lacking := 0, 0, 0, 0
	for _, v := range views {
		proxies[v.ID], frontends[v.Frontend] = true, true
		switch {
		case v.rejects():
			rejecting++
		case v.Behind != nil:
			behind++
		case v.lacks():
			lacking++
		default:
			synced++
		}
	}
	text := fmt.Sprintf("%s on %s", command.Plural(len(proxies), "proxy", "proxies"), command.Plural(len(frontends), "frontend", "frontends"))
	if len(views) > len(proxies) {
		text += fmt.Sprintf(", %d streams", len(views))
	}
	text += fmt.Sprintf(": %d in sync", synced)
	if behind > 0 {
		text += fmt.Sprintf(", %d behind", behind)
	}
	if rejecting > 0 {
		text += fmt.Sprintf(", %d with rejected resources", rejecting)
	}
	if lacking > 0 {
		text += fmt.Sprintf(", %d without secrets", lacking)
	}
	if !head.IsZero() {
		text += fmt.Sprintf(". The newest version is %s", head)
	}
	return text + "."
}

// index returns the place of a type in Types; -1: the stream did not ask for it.
func (v *ProxyView) index(url string) int {
	return slices.IndexFunc(v.Types, func(t typeView) bool { return t.TypeURL == url })
}

// optional reports whether many proxies do not ask for a type: secrets, filters, and
// names, for which only agents ask.
func optional(t ident.ResourceType) bool { return t == ident.SDS || t == ident.ECDS || t == ident.NDS }

func isOptional(url string) bool {
	t, ok := ident.ResourceTypeOf(url)
	return ok && optional(t)
}

// cell shows one type of a stream.
func (v *ProxyView) cell(url string, now time.Time) command.Cell {
	i := v.index(url)
	switch {
	case i >= 0:
		return v.Types[i].Cell(now)
	case isOptional(url):
		return command.Cell{Text: "-"}
	case strings.HasSuffix(v.Stream, "ADS"):
		return command.Cell{Text: "NOT SENT", Color: command.Faint}
	}
	return command.Cell{Text: "-"} // not a type of this stream
}

// Cell shows the status, and for how long it lasts if that matters.
func (v *typeView) Cell(now time.Time) command.Cell {
	lasting := v.Status
	if !v.Since.IsZero() {
		lasting += " " + command.Age(now.Sub(v.Since))
	}
	switch {
	case v.Status == "NACK", v.Status == "TOO LARGE":
		return command.Cell{Text: lasting, Color: command.Red}
	case len(v.HeldBack) > 0:
		return command.Cell{Text: fmt.Sprintf("HELD BACK %d", len(v.HeldBack)), Color: command.Red}
	case len(v.Keys) > 0:
		return command.Cell{Text: fmt.Sprintf("WAITS FOR KEY %d", len(v.Keys)), Color: command.Yellow}
	case v.warms(now):
		return command.Cell{Text: "WARMING " + command.Age(now.Sub(v.Waiting)), Color: command.Yellow}
	case v.lacks() > 0:
		return command.Cell{Text: fmt.Sprintf("LACKS %d", v.lacks()), Color: command.Red}
	case v.Status == "STALE":
		return command.Cell{Text: lasting, Color: command.Yellow}
	case len(v.Quarantined) > 0:
		return command.Cell{Text: fmt.Sprintf("QUARANTINED %d", len(v.Quarantined)), Color: command.Yellow}
	case v.Status == "NOT SENT":
		return command.Cell{Text: v.Status, Color: command.Faint}
	}
	return command.Cell{Text: v.Status, Color: command.Green}
}

// lacks returns how many Secrets the proxy has asked for and does not get.
func (v *typeView) lacks() int { return len(v.Unknown) + len(v.MissingKeys) }

func (v *typeView) warms(now time.Time) bool {
	return !v.Waiting.IsZero() && v.Type == "CDS" && now.Sub(v.Waiting) >= slowAnswer
}

// problems returns the lines below a table: each problem once, with the proxies
// that have it, the most frequent first.
func problems(views []ProxyView, now time.Time) (notes []string) {
	var all []string
	proxies := map[string][]string{}
	for _, v := range views {
		for _, t := range v.Types {
			for _, what := range t.problems(now) {
				if proxies[what] == nil {
					all = append(all, what)
				}
				proxies[what] = append(proxies[what], v.ID)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b string) int { return cmp.Compare(len(proxies[b]), len(proxies[a])) })
	for _, what := range all {
		notes = append(notes, command.Some(proxies[what])+": "+what)
	}
	return notes
}

const (
	heldBackUntil = " held back until it changes"
	waitsForKeys  = " waits for keys that are coming"
	inQuarantine  = " in quarantine (`meshlog diagnostics` shows why)"
	brokenFiles   = "SDS: correct the files on the machine of the proxy, which reads them again within a minute"
	unproven      = "SDS not sent, because the connection shows no certificate of the mesh (connect the proxy as deploy/envoy/tls.yaml does)"
	unknownSecret = "SDS not sent, because there is no such secret for the proxy (`meshlog diagnostics` and `meshlog certs gateways` show why)"
	missingKey    = "SDS not sent, because no watcher gives the private key (/debug/keys of the frontend and its log say why)"
)

// advice says what to do about Secrets, with the names of those that it is about.
func (v *typeView) advice(names func([]string) string) (all []string) {
	if v.Type == "SDS" && slices.ContainsFunc(slices.Concat(v.HeldBack, v.Nack.resources()), secret.InFiles) {
		all = append(all, brokenFiles)
	}
	why := unknownSecret
	if v.anonymous {
		why = unproven
	}
	if len(v.Unknown) > 0 {
		all = append(all, why+": "+names(v.Unknown))
	}
	if len(v.MissingKeys) > 0 {
		all = append(all, missingKey+": "+names(v.MissingKeys))
	}
	return all
}

func (n *nackView) resources() []string {
	if n == nil {
		return nil
	}
	return n.Resources
}

func (v *typeView) problems(now time.Time) (all []string) {
	if v.Nack != nil {
		names := ""
		if len(v.Nack.Resources) > 0 {
			names = " (" + command.Some(v.Nack.Resources) + ")"
		}
		all = append(all, fmt.Sprintf("%s rejected%s: %s", v.Type, names, strings.TrimSpace(v.Nack.Message)))
	}
	if len(v.HeldBack) > 0 {
		all = append(all, v.Type+heldBackUntil+": "+command.Some(v.HeldBack))
	}
	if len(v.Keys) > 0 {
		all = append(all, v.Type+waitsForKeys+": "+command.Some(v.Keys))
	}
	if len(v.Quarantined) > 0 {
		all = append(all, v.Type+inQuarantine+": "+command.Some(v.Quarantined))
	}
	if v.warms(now) {
		all = append(all, fmt.Sprintf("warming: CDS not acknowledged for %d s", int(now.Sub(v.Waiting).Seconds())))
	}
	if v.Status == "TOO LARGE" {
		all = append(all, v.Type+" not sent: the response exceeds what a gRPC client can receive; let it import less")
	}
	return append(all, v.advice(command.Some)...)
}

// show shows the details of a stream.
func (v *ProxyView) show(now time.Time, out *command.Output) {
	var facts command.Rows
	fact := func(name, text string) {
		if text != "" {
			facts.Fact(name, text)
		}
	}
	fact("proxy", v.ID)
	kind := v.Type
	if v.Namespace != "" {
		kind += ", namespace " + v.Namespace
	}
	fact("type", kind)
	fact("cluster", v.Cluster)
	fact("group", v.Group)
	client := cmp.Or(v.UserAgent, "unknown")
	if v.Address != "" {
		client += " at " + v.Address
	}
	if !v.Since.IsZero() {
		client += ", connected " + command.Since(v.Since, now)
	}
	fact("client", client)
	fact("identity", cmp.Or(v.Identity, "none: its connection shows no certificate"))
	fact("certificate", v.certificate(now))
	fact("frontend", fmt.Sprintf("%s, %s, serves %s", v.Frontend, v.Stream, v.Serving))
	switch {
	case v.Version.IsZero():
		fact("applied", "none yet")
	case v.Behind == nil:
		fact("applied", v.Version.String()+", the newest")
	default:
		fact("applied", v.Version.String()+", behind by "+v.Behind.String())
	}
	if v.Lingering > 0 {
		fact("lingering", command.Plural(int(v.Lingering), "removed cluster stays", "removed clusters stay")+" until nothing uses it")
	}
	out.Rows(&facts)
	if len(v.Types) == 0 {
		out.Line("\nThe proxy has not asked for any resources yet.")
		return
	}
	t := command.Rows{Head: []string{"TYPE", "STATUS", "SENT", "APPLIED", "SINCE", "RESOURCES"}}
	for _, x := range v.Types {
		t.Add(x.Type, x.Cell(now), x.Sent, x.Acked, x.Since, x.Resources)
	}
	out.Line("")
	out.Rows(&t)
	for _, x := range v.Types {
		for _, note := range x.details(now) {
			out.Line("\n%s", note)
		}
	}
}

// certificate describes the certificate that the connection shows.
func (v *ProxyView) certificate(now time.Time) string {
	if v.Serial == "" {
		return ""
	}
	text := "serial " + v.Serial
	switch left := v.Ends.Sub(now); {
	case v.Ends.IsZero():
	case left <= 0:
		text += ", ended " + command.Ago(-left)
	default:
		text += ", ends in " + command.Age(left)
	}
	return text
}

// details returns the problems with all names.
func (v *typeView) details(now time.Time) (all []string) {
	if v.Nack != nil {
		text := v.Type + " rejected"
		if !v.Nack.Time.IsZero() {
			text += " at " + command.Clock(v.Nack.Time)
		}
		if len(v.Nack.Resources) > 0 {
			text += ", " + strings.Join(v.Nack.Resources, ", ")
		}
		all = append(all, text+":\n  "+strings.ReplaceAll(strings.TrimSpace(v.Nack.Message), "\n", "\n  "))
	}
	if len(v.HeldBack) > 0 {
		all = append(all, v.Type+heldBackUntil+":\n  "+strings.Join(v.HeldBack, "\n  "))
	}
	if len(v.Keys) > 0 {
		all = append(all, v.Type+waitsForKeys+":\n  "+strings.Join(v.Keys, "\n  "))
	}
	if len(v.Quarantined) > 0 {
		all = append(all, v.Type+inQuarantine+":\n  "+strings.Join(v.Quarantined, "\n  "))
	}
	if v.warms(now) {
		all = append(all, fmt.Sprintf("warming: CDS not acknowledged for %d s; a cluster has no endpoints, has names that do not resolve, or waits for a secret",
			int(now.Sub(v.Waiting).Seconds())))
	}
	return append(all, v.advice(func(names []string) string { return "\n  " + strings.Join(names, "\n  ") })...)
}
