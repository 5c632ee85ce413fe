package inspect

import (
	"cmp"
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
	"meshlog.dev/services/operate/command"
)

// showConfigs shows what proxies have: counts or, of one type, a list.
func showConfigs(views []ConfigView, listed bool, out *command.Output) {
	for i, v := range views {
		if i > 0 {
			out.Line("")
		}
		title := fmt.Sprintf("%s at frontend %s, %s, version %s:", v.Proxy, v.Frontend, v.Stream, v.Version)
		if v.Frontend == "" {
			title = fmt.Sprintf("%s would have, at %s:", v.Proxy, v.Version)
		}
		out.Line("%s", out.Paint(title, command.Faint))
		if listed {
			v.showList(out)
		} else {
			v.showCounts(out)
		}
	}
}

func (v *ConfigView) showCounts(out *command.Output) {
	if len(v.Types) == 0 {
		out.Line("The proxy has not asked for any resources yet.")
		return
	}
	t := command.Rows{Head: []string{"TYPE", "RESOURCES", "STATE", "NOT ASKED FOR"}}
	var notes []string
	for _, c := range v.Types {
		byState := map[string][]string{}
		for _, r := range c.Resources {
			byState[r.State] = append(byState[r.State], r.Name)
		}
		var counts []string
		color := command.Green
		for _, s := range configStates {
			names := byState[s]
			if len(names) == 0 {
				continue
			}
			counts = append(counts, fmt.Sprintf("%d %s", len(names), s))
			if s == stateAcked {
				continue
			}
			notes = append(notes, fmt.Sprintf("%s %s: %s", c.Type, s, command.Some(names)))
			if color != command.Red {
				color = stateColor(s)
			}
		}
		if len(byState[stateDiffers]) > 0 && v.otherBuild != "" {
			notes = append(notes, fmt.Sprintf("The frontend runs another build, %s: this build may make other resources of the same version.", v.otherBuild))
		}
		t.Add(c.Type, len(c.Resources), command.Cell{Text: strings.Join(counts, ", "), Color: color}, c.NotAsked)
	}
	out.Rows(&t)
	out.Notes(notes)
}

// configStates is the order of the states in a count.
var configStates = []string{
	stateAcked, stateSent, stateStale, stateHeldBack, stateQuarantined, stateLingering, stateAbsent, stateDiffers,
}

func stateColor(s string) string {
	switch s {
	case stateAcked:
		return command.Green
	case stateHeldBack, stateDiffers:
		return command.Red
	}
	return command.Yellow
}

func (v *ConfigView) showList(out *command.Output) {
	for _, c := range v.Types {
		if len(c.Resources) == 0 {
			out.Line("The proxy has none.")
			continue
		}
		out.Rows(c.table(out))
		if c.NotAsked > 0 {
			out.Line("\nThe proxy has not asked for %s.", command.Plural(c.NotAsked, "other", "others"))
		}
	}
}

// lists are the lists of resources by type: their titles, and the cells behind the
// name, in one or more rows for each resource.
var lists = map[string]struct {
	head []string
	rows func(proto.Message) [][]any
}{
	ident.CDS.String():  {[]string{"CLUSTER", "TYPE", "BALANCER", "ENDPOINTS"}, clusterRows},
	ident.EDS.String():  {[]string{"CLUSTER", "ENDPOINT", "LOCALITY", "WEIGHT", "HEALTH"}, endpointRows},
	ident.LDS.String():  {[]string{"LISTENER", "ADDRESS", "MATCH", "DESTINATION"}, listenerRows},
	ident.RDS.String():  {[]string{"ROUTES", "HOSTS", "MATCH", "DESTINATION"}, routeRows},
	ident.ECDS.String(): {[]string{"SLOT", "FILTER", "ACTION", "POLICIES"}, filterRows},
	ident.NDS.String():  {[]string{"SERVICE", "HOST", "ADDRESSES"}, nameRows},
	ident.SDS.String():  {[]string{"SECRET", "HOLDS", "FOR", "ENDS"}, secretRows},
}

// table lists resources: one in a line, or each endpoint and route of one.
func (c *configType) table(out *command.Output) *command.Rows {
	t := &command.Rows{Head: c.Head()}
	hasState := slices.ContainsFunc(c.Resources, func(r configResource) bool { return r.State != "" })
	if hasState {
		t.Head = append(slices.Clone(t.Head), "STATE")
	}
	for _, r := range c.Resources {
		for _, cells := range c.Cells(r) {
			row := []any{out.Cut(r.Name, 60)}
			for _, column := range cells {
				row = append(row, out.Cut(fmt.Sprint(column), 100))
			}
			if hasState {
				row = append(row, command.Cell{Text: r.State, Color: stateColor(r.State)})
			}
			t.Add(row...)
		}
	}
	return t
}

// Head returns the titles of a list of the type.
func (c *configType) Head() []string {
	if list, known := lists[c.Type]; known {
		return list.head
	}
	return []string{"NAME"}
}

// Cells returns what a list shows of a resource behind its name: one or more rows, such as
// one for each endpoint.
func (c *configType) Cells(r configResource) (rows [][]any) {
	if list, known := lists[c.Type]; known && r.message != nil {
		rows = list.rows(r.message)
	}
	if len(rows) == 0 {
		rows = [][]any{slices.Repeat([]any{""}, len(c.Head())-1)}
	}
	return rows
}

func clusterRows(m proto.Message) [][]any {
	c := m.(*clusterv3.Cluster)
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
	return [][]any{{of, c.GetLbPolicy(), command.Some(hosts)}}
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
				health = corev3.HealthStatus_HEALTHY // Envoy uses it unless it finds out otherwise
			}
			rows = append(rows, []any{address(e.GetEndpoint().GetAddress()), locality, weight, health})
		}
	}
	return rows
}

func address(a *corev3.Address) string {
	if s := a.GetSocketAddress(); s != nil {
		return net.JoinHostPort(s.GetAddress(), strconv.FormatUint(uint64(s.GetPortValue()), 10))
	}
	return cmp.Or(a.GetPipe().GetPath(), a.GetEnvoyInternalAddress().GetServerListenerName())
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
		words = append(words, "SNI "+command.Some(s))
	}
	if p := m.GetTransportProtocol(); p != "" {
		words = append(words, p)
	}
	if a := m.GetApplicationProtocols(); len(a) > 0 {
		words = append(words, command.Some(a))
	}
	return strings.Join(words, ", ")
}

// destinationOf returns where a network filter sends connections; empty if it
// sends none.
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
			return "cluster " + weighted(w, func(c *tcpv3.TcpProxy_WeightedCluster_ClusterWeight) uint32 { return c.GetWeight() })
		}
		return "cluster " + f.GetCluster()
	}
	return ""
}

func routeRows(m proto.Message) (rows [][]any) {
	for _, h := range m.(*routev3.RouteConfiguration).GetVirtualHosts() {
		hosts := command.Some(h.GetDomains())
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
			return weighted(w, func(c *routev3.WeightedCluster_ClusterWeight) uint32 { return c.GetWeight().GetValue() })
		}
		if a.Route.GetClusterHeader() != "" {
			return "cluster of header " + a.Route.GetClusterHeader()
		}
		return a.Route.GetCluster()
	}
	return ""
}

func weighted[C interface{ GetName() string }](clusters []C, weight func(C) uint32) string {
	var to []string
	for _, c := range clusters {
		to = append(to, fmt.Sprintf("%s %d", c.GetName(), weight(c)))
	}
	return strings.Join(to, ", ")
}
