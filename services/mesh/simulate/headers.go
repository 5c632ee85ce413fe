package simulate

import "strings"

// joined are the headers whose lines a stock Envoy joins with commas into one as it reads a
// request, so that no filter sees one of the lines alone (POL-8).
var joined = map[string]bool{
	"accept": true, "accept-encoding": true, "access-control-request-headers": true, "access-control-request-method": true,
	"authorization": true, "cache-control": true, "content-encoding": true, "content-type": true, "expect": true,
	"grpc-accept-encoding": true, "grpc-timeout": true, "if-match": true, "if-modified-since": true, "if-none-match": true,
	"origin": true, "pragma": true, "referer": true, "user-agent": true, "via": true,
	"x-client-trace-id": true, "x-envoy-attempt-count": true, "x-envoy-decorator-operation": true,
	"x-envoy-downstream-service-cluster": true, "x-envoy-external-address": true, "x-envoy-original-host": true,
	"x-envoy-original-path": true, "x-forwarded-for": true, "x-forwarded-host": true, "x-forwarded-port": true,
	"x-forwarded-proto": true, "x-request-id": true,
}

// received returns the lines of a header, by its lower-case name, as filters see them.
func received(name string, lines []string) []string {
	if joined[name] && len(lines) > 1 {
		return []string{strings.Join(lines, ",")}
	}
	return lines
}
