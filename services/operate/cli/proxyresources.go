package cli

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
)

// showConfigs shows what proxies have: counted or, of one type, listed.
func showConfigs(views []configView, listed bool, out *output) error {
	for i := range views {
		v := &views[i]
		if i > 0 {
			if err := out.line(""); err != nil {
				return err
			}
		}
		if err := out.line("%s", out.paint(v.title(), faint)); err != nil {
			return err
		}
		show := v.showCounts
		if listed {
			show = v.showList
		}
		if err := show(out); err != nil {
			return err
		}
	}
	return nil
}

func (v *configView) title() string {
	if v.Frontend == "" {
		return fmt.Sprintf("%s would have, at %s:", v.Proxy, v.Version)
	}
	return fmt.Sprintf("%s at frontend %s, %s, version %s:", v.Proxy, v.Frontend, v.Stream, v.Version)
}

func (v *configView) showCounts(out *output) error {
	if len(v.Types) == 0 {
		return out.line("It has asked for nothing so far.")
	}
	t := table{head: []string{"TYPE", "RESOURCES", "STATE", "NOT ASKED FOR"}}
	for _, c := range v.Types {
		t.add(c.Type, len(c.Resources), c.states(), c.NotAsked)
	}
	if err := out.table(&t, true); err != nil {
		return err
	}
	notes := v.notes()
	if len(notes) == 0 {
		return nil
	}
	return out.line("\n%s", strings.Join(notes, "\n"))
}

// order of the states in a count.
var configStates = []string{
	stateAcked, stateSent, stateStale, stateHeldBack, stateQuarantined, stateLingering, stateAbsent, stateDiffers,
}

func (c *configType) named(state string) (names []string) {
	for _, r := range c.Resources {
		if r.State == state {
			names = append(names, r.Name)
		}
	}
	return names
}

// states counts its resources by state.
func (c *configType) states() cell {
	var counts []string
	color := green
	for _, s := range configStates {
		n := len(c.named(s))
		if n == 0 {
			continue
		}
		counts = append(counts, fmt.Sprintf("%d %s", n, s))
		switch {
		case s == stateHeldBack || s == stateDiffers:
			color = red
		case s != stateAcked && color != red:
			color = yellow
		}
	}
	return cell{strings.Join(counts, ", "), color}
}

// notes name what is not as it should be.
func (v *configView) notes() (notes []string) {
	for _, c := range v.Types {
		for _, s := range configStates[1:] {
			if names := c.named(s); len(names) > 0 {
				notes = append(notes, fmt.Sprintf("%s %s: %s", c.Type, s, some(names)))
			}
		}
		if len(c.named(stateDiffers)) > 0 && v.otherBuild != "" {
			notes = append(notes, fmt.Sprintf("The frontend is of another build, %s: this one may make other resources of the same version.", v.otherBuild))
		}
	}
	return notes
}

func (v *configView) showList(out *output) error {
	for _, c := range v.Types {
		if len(c.Resources) == 0 {
			if err := out.line("It has none."); err != nil {
				return err
			}
			continue
		}
		if err := out.table(c.table(out), true); err != nil {
			return err
		}
		if c.NotAsked > 0 {
			if err := out.line("\n%s there that it has not asked for.", plural(c.NotAsked, "more is", "more are")); err != nil {
				return err
			}
		}
	}
	return nil
}

// table lists resources: one in a line, or each endpoint and route of one.
func (c *configType) table(out *output) *table {
	t := &table{}
	var rows func(proto.Message) [][]any
	switch c.Type {
	case ident.CDS.String():
		t.head, rows = []string{"CLUSTER", "TYPE", "BALANCER", "ENDPOINTS"}, clusterRows
	case ident.EDS.String():
		t.head, rows = []string{"CLUSTER", "ENDPOINT", "LOCALITY", "WEIGHT", "HEALTH"}, endpointRows
	case ident.LDS.String():
		t.head, rows = []string{"LISTENER", "ADDRESS", "MATCH", "DESTINATION"}, listenerRows
	default:
		t.head, rows = []string{"ROUTES", "HOSTS", "MATCH", "DESTINATION"}, routeRows
	}
	columns := len(t.head) - 1
	hasState := slices.ContainsFunc(c.Resources, func(r configResource) bool { return r.State != "" })
	if hasState {
		t.head = append(t.head, "STATE")
	}
	for _, r := range c.Resources {
		var of [][]any
		if r.message != nil {
			of = rows(r.message)
		}
		if len(of) == 0 {
			of = [][]any{slices.Repeat([]any{""}, columns)}
		}
		for _, cells := range of {
			row := []any{out.cut(r.Name, 60)}
			for _, column := range cells {
				row = append(row, out.cut(fmt.Sprint(column), 100))
			}
			if hasState {
				row = append(row, stateCell(r.State))
			}
			t.add(row...)
		}
	}
	return t
}

func stateCell(s string) cell {
	switch s {
	case stateAcked:
		return cell{s, green}
	case stateHeldBack, stateDiffers:
		return cell{s, red}
	}
	return cell{s, yellow}
}

func clusterRows(m proto.Message) [][]any {
	c, ok := m.(*clusterv3.Cluster)
	if !ok {
		return nil
	}
	of := c.GetType().String()
	if c.GetClusterType() != nil {
		of = c.GetClusterType().GetName()
	}
	var hosts []string
	for _, l := range c.GetLoadAssignment().GetEndpoints() {
		for _, e := range l.GetLbEndpoints() {
			hosts = append(hosts, address(e.GetEndpoint().GetAddress()))
		}
	}
	return [][]any{{of, c.GetLbPolicy(), some(hosts)}}
}

func endpointRows(m proto.Message) (rows [][]any) {
	for _, l := range m.(*endpointv3.ClusterLoadAssignment).GetEndpoints() {
		at := l.GetLocality()
		locality := strings.TrimRight(strings.Join([]string{at.GetRegion(), at.GetZone(), at.GetSubZone()}, "/"), "/")
		if p := l.GetPriority(); p > 0 {
			locality += fmt.Sprintf(" priority %d", p)
		}
		for _, e := range l.GetLbEndpoints() {
			weight := ""
			if w := e.GetLoadBalancingWeight(); w != nil {
				weight = strconv.FormatUint(uint64(w.GetValue()), 10)
			}
			health := e.GetHealthStatus()
			if health == corev3.HealthStatus_UNKNOWN {
				health = corev3.HealthStatus_HEALTHY // so it counts, unless Envoy finds out
			}
			rows = append(rows, []any{address(e.GetEndpoint().GetAddress()), locality, weight, health})
		}
	}
	return rows
}

func address(a *corev3.Address) string {
	switch {
	case a.GetSocketAddress() != nil:
		s := a.GetSocketAddress()
		return net.JoinHostPort(s.GetAddress(), strconv.FormatUint(uint64(s.GetPortValue()), 10))
	case a.GetPipe() != nil:
		return a.GetPipe().GetPath()
	case a.GetEnvoyInternalAddress() != nil:
		return a.GetEnvoyInternalAddress().GetServerListenerName()
	}
	return ""
}

func listenerRows(m proto.Message) (rows [][]any) {
	l := m.(*listenerv3.Listener)
	at := address(l.GetAddress())
	if l.GetApiListener() != nil {
		return [][]any{{"(gRPC)", "", destinationOf(l.GetApiListener().GetApiListener().UnmarshalNew())}}
	}
	chains := l.GetFilterChains()
	if d := l.GetDefaultFilterChain(); d != nil {
		chains = append(slices.Clone(chains), d)
	}
	for _, c := range chains {
		destination := ""
		for _, f := range c.GetFilters() {
			if d := destinationOf(f.GetTypedConfig().UnmarshalNew()); d != "" {
				destination = d
			}
		}
		rows = append(rows, []any{at, chainMatch(c.GetFilterChainMatch()), destination})
	}
	if len(rows) == 0 {
		rows = append(rows, []any{at, "", ""})
	}
	return rows
}

func chainMatch(m *listenerv3.FilterChainMatch) string {
	var words []string
	if p := m.GetDestinationPort(); p != nil {
		words = append(words, fmt.Sprintf("port %d", p.GetValue()))
	}
	for _, r := range m.GetPrefixRanges() {
		words = append(words, fmt.Sprintf("to %s/%d", r.GetAddressPrefix(), r.GetPrefixLen().GetValue()))
	}
	if s := m.GetServerNames(); len(s) > 0 {
		words = append(words, "SNI "+some(s))
	}
	if p := m.GetTransportProtocol(); p != "" {
		words = append(words, p)
	}
	if a := m.GetApplicationProtocols(); len(a) > 0 {
		words = append(words, some(a))
	}
	return strings.Join(words, ", ")
}

// destinationOf is where a network filter sends connections; empty: it does not.
func destinationOf(filter proto.Message, err error) string {
	if err != nil {
		return ""
	}
	switch f := filter.(type) {
	case *hcmv3.HttpConnectionManager:
		if f.GetRds() != nil {
			return "routes " + f.GetRds().GetRouteConfigName()
		}
		return "routes of its own"
	case *tcpv3.TcpProxy:
		if w := f.GetWeightedClusters().GetClusters(); len(w) > 0 {
			var to []string
			for _, c := range w {
				to = append(to, fmt.Sprintf("%s %d", c.GetName(), c.GetWeight()))
			}
			return "cluster " + strings.Join(to, ", ")
		}
		return "cluster " + f.GetCluster()
	}
	return ""
}

func routeRows(m proto.Message) (rows [][]any) {
	for _, h := range m.(*routev3.RouteConfiguration).GetVirtualHosts() {
		hosts := some(h.GetDomains())
		for _, r := range h.GetRoutes() {
			rows = append(rows, []any{hosts, routeMatch(r.GetMatch()), routeDestination(r)})
		}
		if len(h.GetRoutes()) == 0 {
			rows = append(rows, []any{hosts, "", "404"})
		}
	}
	return rows
}

func routeMatch(m *routev3.RouteMatch) string {
	var words []string
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		words = append(words, p.Prefix+"*")
	case *routev3.RouteMatch_Path:
		words = append(words, p.Path)
	case *routev3.RouteMatch_SafeRegex:
		words = append(words, "~"+p.SafeRegex.GetRegex())
	case *routev3.RouteMatch_PathSeparatedPrefix:
		words = append(words, p.PathSeparatedPrefix+"/*")
	}
	for _, h := range m.GetHeaders() {
		words = append(words, "header "+h.GetName())
	}
	for _, q := range m.GetQueryParameters() {
		words = append(words, "query "+q.GetName())
	}
	return strings.Join(words, ", ")
}

func routeDestination(r *routev3.Route) string {
	switch a := r.GetAction().(type) {
	case *routev3.Route_Redirect:
		return "redirect"
	case *routev3.Route_DirectResponse:
		return strconv.FormatUint(uint64(a.DirectResponse.GetStatus()), 10)
	case *routev3.Route_Route:
		if w := a.Route.GetWeightedClusters().GetClusters(); len(w) > 0 {
			var to []string
			for _, c := range w {
				to = append(to, fmt.Sprintf("%s %d", c.GetName(), c.GetWeight().GetValue()))
			}
			return strings.Join(to, ", ")
		}
		if a.Route.GetClusterHeader() != "" {
			return "cluster of header " + a.Route.GetClusterHeader()
		}
		return a.Route.GetCluster()
	}
	return ""
}
