package validate

import (
	"strconv"

	"google.golang.org/protobuf/proto"

	security "istio.io/api/security/v1beta1"

	"meshlog.dev/services/mesh/problem"
)

// PeerAuthentication checks a PeerAuthentication (PA-2).
func PeerAuthentication(m proto.Message) []problem.Diagnostic {
	p := m.(*security.PeerAuthentication)
	c := checker{kind: "PeerAuthentication"}
	c.labels(root.field("selector.matchLabels"), p.GetSelector().GetMatchLabels())
	ports := root.field("portLevelMtls")
	c.errorIf(len(p.GetPortLevelMtls()) > 0 && len(p.GetSelector().GetMatchLabels()) == 0, ports,
		"add a selector, or remove the ports", "counts only with a selector")
	for port := range p.GetPortLevelMtls() {
		if port == 0 || port > 65535 {
			c.errorf(ports, "write the port on which the application listens", "%s is not a port", strconv.FormatUint(uint64(port), 10))
		}
	}
	return c.result()
}
