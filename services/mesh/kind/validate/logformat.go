package validate

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// fileAccessLog is the provider of access logs in files.
type fileAccessLog = meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider

// BuiltInLog is the provider of access logs that a mesh has without naming it, as in Istio:
// it writes to /dev/stdout.
const BuiltInLog = "envoy"

// logOperator matches an operator in the format of an access log: its name and its
// argument.
var logOperator = regexp.MustCompile(`%%|%([A-Z][A-Z0-9_]*)(?:(\([^()]*\)))?(?::[0-9]+)?%`)

// The operators of access logs that a stock Envoy knows, by whether they have an argument.
// Envoy refuses the whole listener for another one.
var (
	logOperators = []string{
		"ACCESS_LOG_TYPE", "BYTES_RECEIVED", "BYTES_SENT", "CONNECTION_ID", "CONNECTION_TERMINATION_DETAILS", "CUSTOM_FLAGS",
		"DOWNSTREAM_DETECTED_CLOSE_TYPE", "DOWNSTREAM_DIRECT_LOCAL_ADDRESS", "DOWNSTREAM_DIRECT_REMOTE_ADDRESS", "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
		"DOWNSTREAM_DIRECT_REMOTE_PORT", "DOWNSTREAM_HANDSHAKE_DURATION", "DOWNSTREAM_HEADER_BYTES_RECEIVED", "DOWNSTREAM_HEADER_BYTES_SENT",
		"DOWNSTREAM_LOCAL_ADDRESS", "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT", "DOWNSTREAM_LOCAL_DNS_SAN", "DOWNSTREAM_LOCAL_IP_SAN", "DOWNSTREAM_LOCAL_PORT",
		"DOWNSTREAM_LOCAL_SUBJECT", "DOWNSTREAM_LOCAL_URI_SAN", "DOWNSTREAM_PEER_CERT", "DOWNSTREAM_PEER_DNS_SAN", "DOWNSTREAM_PEER_FINGERPRINT_1",
		"DOWNSTREAM_PEER_FINGERPRINT_256", "DOWNSTREAM_PEER_IP_SAN", "DOWNSTREAM_PEER_ISSUER", "DOWNSTREAM_PEER_SERIAL", "DOWNSTREAM_PEER_SUBJECT",
		"DOWNSTREAM_PEER_URI_SAN", "DOWNSTREAM_REMOTE_ADDRESS", "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", "DOWNSTREAM_REMOTE_PORT",
		"DOWNSTREAM_TLS_CIPHER", "DOWNSTREAM_TLS_SESSION_ID", "DOWNSTREAM_TLS_VERSION", "DOWNSTREAM_TRANSPORT_FAILURE_REASON",
		"DOWNSTREAM_WIRE_BYTES_RECEIVED", "DOWNSTREAM_WIRE_BYTES_SENT", "DURATION", "FILTER_CHAIN_NAME", "GRPC_STATUS", "GRPC_STATUS_NUMBER",
		"HOSTNAME", "LOCAL_REPLY_BODY", "PROTOCOL", "REQUESTED_SERVER_NAME", "REQUEST_DURATION", "REQUEST_HEADERS_BYTES", "REQUEST_TX_DURATION",
		"RESPONSE_CODE", "RESPONSE_CODE_DETAILS", "RESPONSE_DURATION", "RESPONSE_FLAGS", "RESPONSE_FLAGS_LONG", "RESPONSE_HEADERS_BYTES",
		"RESPONSE_TRAILERS_BYTES", "RESPONSE_TX_DURATION", "ROUNDTRIP_DURATION", "ROUTE_NAME", "STREAM_ID", "TLS_JA3_FINGERPRINT", "TRACE_ID", "UNIQUE_ID",
		"UPSTREAM_CLUSTER", "UPSTREAM_CLUSTER_RAW", "UPSTREAM_CONNECTION_ID", "UPSTREAM_CONNECTION_POOL_READY_DURATION", "UPSTREAM_HEADER_BYTES_RECEIVED",
		"UPSTREAM_HEADER_BYTES_SENT", "UPSTREAM_HOST", "UPSTREAM_HOST_NAME", "UPSTREAM_LOCAL_ADDRESS", "UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT",
		"UPSTREAM_LOCAL_PORT", "UPSTREAM_PEER_CERT", "UPSTREAM_PEER_ISSUER", "UPSTREAM_PEER_SUBJECT", "UPSTREAM_PROTOCOL", "UPSTREAM_REMOTE_ADDRESS",
		"UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT", "UPSTREAM_REMOTE_PORT", "UPSTREAM_REQUEST_ATTEMPT_COUNT", "UPSTREAM_TLS_CIPHER", "UPSTREAM_TLS_SESSION_ID",
		"UPSTREAM_TLS_VERSION", "UPSTREAM_TRANSPORT_FAILURE_REASON", "UPSTREAM_WIRE_BYTES_RECEIVED", "UPSTREAM_WIRE_BYTES_SENT", "VIRTUAL_CLUSTER_NAME",
	}
	logArguments = []string{"DYNAMIC_METADATA", "ENVIRONMENT", "FILTER_STATE", "REQ", "RESP", "TRAILER", "UPSTREAM_METADATA"}
	logTimes     = []string{"START_TIME"} // with or without a format
)

// LogOperators returns an example of each operator that the format of an access log may
// have.
func LogOperators() []string {
	var all []string
	for _, name := range slices.Concat(logOperators, logTimes) {
		all = append(all, "%"+name+"%")
	}
	for _, name := range logArguments {
		all = append(all, "%"+name+"(x)%")
	}
	return all
}

// logText checks a format of access logs.
func (c *checker) logText(at *fieldPath, format string) {
	rest := logOperator.ReplaceAllStringFunc(format, func(s string) string {
		m := logOperator.FindStringSubmatch(s)
		name, argument := m[1], m[2]
		switch {
		case s == "%%", slices.Contains(logTimes, name):
			return ""
		case slices.Contains(logOperators, name) && argument == "":
			return ""
		case slices.Contains(logArguments, name) && len(argument) > len("()"):
			return ""
		}
		return s
	})
	if i := strings.Index(rest, "%"); i >= 0 {
		c.errorf(at, "write %% for a percent sign, or one of Envoy's operators, like %RESPONSE_CODE% or %REQ(name)%", "%q begins no operator that a stock Envoy knows", firstOf(rest[i:]))
	}
}

// firstOf returns the beginning of a text, for a message.
func firstOf(s string) string {
	const most = 40
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "")
	}
	return s
}

// logFields checks the fields of a JSON log.
func (c *checker) logFields(at *fieldPath, fields *structpb.Struct) {
	for name, v := range fields.GetFields() {
		c.logField(at.entry(name), v)
	}
}

func (c *checker) logField(at *fieldPath, v *structpb.Value) {
	switch kind := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		c.logText(at, kind.StringValue)
	case *structpb.Value_NumberValue, *structpb.Value_BoolValue:
	case *structpb.Value_StructValue:
		c.logFields(at, kind.StructValue)
	case *structpb.Value_ListValue:
		for i, e := range kind.ListValue.GetValues() {
			c.logField(at.item(i), e)
		}
	default:
		c.errorf(at, "write a text, a number, or fields", "Envoy logs no null")
	}
}

// fileLog checks a provider of access logs in files (TL-5).
func (c *checker) fileLog(at *fieldPath, f *fileAccessLog) {
	c.logText(at.field("logFormat.text"), f.GetLogFormat().GetText())
	c.logFields(at.field("logFormat.labels"), f.GetLogFormat().GetLabels())
	if s := f.GetPath(); strings.ContainsRune(s, 0) {
		c.errorf(at.field("path"), "write the path of a file", "%q is no path", s)
	}
}

// logServices checks a provider of access logs that are sent to a service (TL-5).
func (c *checker) logServices(at *fieldPath, p *extensionProvider) {
	if h := p.GetEnvoyHttpAls(); h != nil {
		at := at.field("envoyHttpAls")
		c.called(at, h)
		for field, names := range map[string][]string{
			"additionalRequestHeadersToLog": h.GetAdditionalRequestHeadersToLog(), "additionalResponseHeadersToLog": h.GetAdditionalResponseHeadersToLog(),
			"additionalResponseTrailersToLog": h.GetAdditionalResponseTrailersToLog(),
		} {
			for i, name := range names {
				c.header(at.field(field).item(i), strings.TrimPrefix(name, ":"))
			}
		}
	}
	if t := p.GetEnvoyTcpAls(); t != nil {
		c.called(at.field("envoyTcpAls"), t)
	}
	if o := p.GetEnvoyOtelAls(); o != nil {
		at := at.field("envoyOtelAls")
		c.called(at, o)
		c.logText(at.field("logFormat.text"), o.GetLogFormat().GetText())
		c.logFields(at.field("logFormat.labels"), o.GetLogFormat().GetLabels())
	}
}

// meshLogs checks the access logs of all proxies, and the providers that are the default.
func (c *checker) meshLogs(m *meshconfig.MeshConfig) {
	encoding, at := m.GetAccessLogEncoding(), root.field("accessLogFormat")
	switch {
	case m.GetAccessLogFormat() == "":
	case encoding == meshconfig.MeshConfig_JSON:
		fields, err := LogFields(m.GetAccessLogFormat())
		if err != nil {
			c.errorf(at, `write an object such as {"status": "%RESPONSE_CODE%"}`, "with accessLogEncoding JSON it must be a JSON object")
		}
		c.logFields(at, fields)
	default:
		c.logText(at, m.GetAccessLogFormat())
	}
	if _, known := meshconfig.MeshConfig_AccessLogEncoding_name[int32(encoding)]; !known {
		c.errorf(root.field("accessLogEncoding"), "use TEXT or JSON", "%d is not an encoding", encoding)
	}
	for i, name := range m.GetDefaultProviders().GetAccessLogging() {
		if reason := LogProvider(m, name); reason != "" {
			c.warnf(root.field("defaultProviders.accessLogging").item(i), "name one of extensionProviders that writes access logs", "%s", reason)
		}
	}
}

// LogFields reads the fields of a JSON log from the accessLogFormat of a MeshConfig.
func LogFields(text string) (*structpb.Struct, error) {
	fields := &structpb.Struct{}
	if err := protojson.Unmarshal(json.RawMessage(text), fields); err != nil {
		return nil, err //nolint:wrapcheck // the caller names the field
	}
	return fields, nil
}

// Provider returns the extension provider of a name; nil: MeshConfig has none. As in Istio,
// upper and lower case of the name make no difference.
func Provider(m *meshconfig.MeshConfig, name string) *meshconfig.MeshConfig_ExtensionProvider {
	for _, p := range m.GetExtensionProviders() {
		if strings.EqualFold(p.GetName(), name) {
			return p
		}
	}
	return nil
}

// LogProvider says why a mesh has no provider of access logs of a name; "": it has.
func LogProvider(m *meshconfig.MeshConfig, name string) string {
	p := Provider(m, name)
	switch {
	case p == nil && name == BuiltInLog:
		return ""
	case p == nil:
		return "extensionProviders has no provider " + name
	case p.GetEnvoyFileAccessLog() == nil && p.GetEnvoyHttpAls() == nil && p.GetEnvoyTcpAls() == nil && p.GetEnvoyOtelAls() == nil:
		return "the provider " + name + " of extensionProviders writes no access logs"
	}
	return ""
}
