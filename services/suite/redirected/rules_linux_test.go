package redirected_test

import (
	"net"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	proxyUID     = 1337
	outboundPort = 15001
	inboundPort  = 15006
	// transparentMark marks connections that keep the address of their caller.
	transparentMark = 1337
	// ownSource is the address from which a sidecar calls its own workload.
	ownSource = "127.0.0.6"
)

// redirection says which connections of a namespace go to its Envoy.
type redirection struct {
	// transparent redirects inbound connections without a change of their addresses
	// (TPROXY).
	transparent bool
	// all also redirects the inbound ports that probes and metrics use.
	all bool
	// open leaves out the rule of MTLS-12 for what Envoy sends to its own pod.
	open bool
}

// excluded are the inbound ports that are not redirected.
var excluded = []uint16{15000, 15020, 15021, 15090}

// rules writes rules into a chain.
type rules struct {
	conn  *nftables.Conn
	chain *nftables.Chain
}

func (r rules) add(parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	r.conn.AddRule(&nftables.Rule{Table: r.chain.Table, Chain: r.chain, Exprs: all})
}

// redirect writes the rules of a pod.
func redirect(t *testing.T, pod *namespace, to redirection) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(int(pod.handle)))
	pod.do("nftables", err)
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "redirection"})
	chain := func(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) rules {
		return rules{conn, conn.AddChain(&nftables.Chain{Name: name, Table: table, Type: kind, Hooknum: hook, Priority: priority})}
	}
	calls := chain("calls", nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest)
	calls.add(marked(), leave())
	calls.add(throughLoopback(expr.MetaKeyOIFNAME), from(ownSource), leave())
	if !to.open {
		calls.add(throughLoopback(expr.MetaKeyOIFNAME), byProxy(), toLoopback(expr.CmpOpNeq), tcp(), redirectTo(inboundPort))
	}
	calls.add(byProxy(), leave())
	calls.add(toLoopback(expr.CmpOpEq), leave())
	calls.add(tcp(), redirectTo(outboundPort))

	inbound := func(r rules, action ...expr.Any) {
		r.add(throughLoopback(expr.MetaKeyIIFNAME), leave())
		for _, port := range excluded {
			if !to.all {
				r.add(tcp(), toPort(port), leave())
			}
		}
		r.add(tcp(), action)
	}
	if to.transparent {
		pod.transparently()
		inbound(chain("inbound", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityMangle), transparentTo(inboundPort)...)
		answers := chain("answers", nftables.ChainTypeRoute, nftables.ChainHookOutput, nftables.ChainPriorityMangle)
		answers.add(marked(), []expr.Any{
			&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, &expr.Ct{Key: expr.CtKeyMARK, SourceRegister: true, Register: 1},
		}, leave())
		answers.add([]expr.Any{
			&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, equal(binaryutil.NativeEndian.PutUint32(transparentMark)),
			&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
		})
	} else {
		inbound(chain("inbound", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest), redirectTo(inboundPort)...)
	}
	pod.do("write nftables rules", conn.Flush())
}

// transparently makes the kernel deliver packets with the mark to sockets of the pod,
// whatever their destination is.
func (n *namespace) transparently() {
	n.Helper()
	const table = 133
	for _, place := range []string{"all", "lo", "eth0"} {
		n.set("ipv4/conf/"+place+"/rp_filter", "0") // packets come through lo from addresses elsewhere
	}
	h := n.netlink()
	defer h.Close()
	rule := netlink.NewRule()
	rule.Mark, rule.Table, rule.Family = transparentMark, table, unix.AF_INET
	n.do("rule for the mark", h.RuleAdd(rule))
	lo, err := h.LinkByName("lo")
	n.do("loopback", err)
	_, anywhere, err := net.ParseCIDR("0.0.0.0/0")
	n.do("route for the mark", err)
	n.do("route for the mark", h.RouteAdd(&netlink.Route{
		LinkIndex: lo.Attrs().Index, Table: table, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST, Dst: anywhere,
	}))
}

func equal(data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data}
}

func leave() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}} }

func tcp() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, equal([]byte{unix.IPPROTO_TCP})}
}

func toPort(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, equal(binaryutil.BigEndian.PutUint16(port)),
	}
}

func throughLoopback(key expr.MetaKey) []expr.Any {
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, "lo")
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, equal(name)}
}

// byProxy matches what Envoy sends.
func byProxy() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeySKUID, Register: 1}, equal(binaryutil.NativeEndian.PutUint32(proxyUID))}
}

func marked() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: 1}, equal(binaryutil.NativeEndian.PutUint32(transparentMark))}
}

func from(ip string) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 12, Len: 4}, equal(net.ParseIP(ip).To4())}
}

// toLoopback compares the destination with 127.0.0.0/8.
func toLoopback(op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 1},
		&expr.Cmp{Op: op, Register: 1, Data: []byte{127}},
	}
}

func redirectTo(port uint16) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)}, &expr.Redir{RegisterProtoMin: 1}}
}

func transparentTo(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.TProxy{Family: unix.NFPROTO_IPV4, TableFamily: unix.NFPROTO_IPV4, RegPort: 1},
		&expr.Immediate{Register: 1, Data: binaryutil.NativeEndian.PutUint32(transparentMark)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1},
		&expr.Verdict{Kind: expr.VerdictAccept},
	}
}
