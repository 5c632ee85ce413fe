// Package accesslog makes the access logs of listeners from Telemetries and MeshConfig
// (TL-5).
//
// It is pure.
package accesslog

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// stdout is the file of a provider that names none.
const stdout = "/dev/stdout"

// textFormat is Istio's default format.
const textFormat = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% %RESPONSE_FLAGS% " +
	"%RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% " +
	"%DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" " +
	"\"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% " +
	"%DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n"

// jsonFields returns Istio's default fields of a JSON log.
func jsonFields() *structpb.Struct {
	fields := map[string]*structpb.Value{}
	for name, format := range map[string]string{
		"start_time": "%START_TIME%", "route_name": "%ROUTE_NAME%", "method": "%REQ(:METHOD)%", "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
		"protocol": "%PROTOCOL%", "response_code": "%RESPONSE_CODE%", "response_flags": "%RESPONSE_FLAGS%",
		"response_code_details": "%RESPONSE_CODE_DETAILS%", "connection_termination_details": "%CONNECTION_TERMINATION_DETAILS%",
		"bytes_received": "%BYTES_RECEIVED%", "bytes_sent": "%BYTES_SENT%", "duration": "%DURATION%",
		"upstream_service_time": "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%", "x_forwarded_for": "%REQ(X-FORWARDED-FOR)%",
		"user_agent": "%REQ(USER-AGENT)%", "request_id": "%REQ(X-REQUEST-ID)%", "authority": "%REQ(:AUTHORITY)%",
		"upstream_host": "%UPSTREAM_HOST%", "upstream_cluster": "%UPSTREAM_CLUSTER_RAW%", "upstream_local_address": "%UPSTREAM_LOCAL_ADDRESS%",
		"downstream_local_address": "%DOWNSTREAM_LOCAL_ADDRESS%", "downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%",
		"requested_server_name": "%REQUESTED_SERVER_NAME%", "upstream_transport_failure_reason": "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
	} {
		fields[name] = structpb.NewStringValue(format)
	}
	return &structpb.Struct{Fields: fields}
}

// Of returns the access logs of proxies of LDSClass.Telemetry: of what their workloads are
// called by, as servers, or of what these call. Routers are clients, as in Istio.
func Of(r *index.Reader, selected index.SelectorSet, server bool) []*accesslogv3.AccessLog {
	mesh := r.Mesh()
	var levels []*telemetry.Telemetry
	for _, o := range r.Telemetry(selected) {
		if t, ok := o.Message.(*telemetry.Telemetry); ok && len(t.GetAccessLogging()) > 0 {
			levels = append(levels, t)
		}
	}
	if len(levels) == 0 && len(mesh.GetDefaultProviders().GetAccessLogging()) == 0 {
		return ofMesh(mesh)
	}
	var all []*accesslogv3.AccessLog
	for _, name := range providers(mesh, levels, server) {
		if log := ofProvider(mesh, name); log != nil {
			all = append(all, log)
		}
	}
	return all
}

// ofMesh returns the access log that a MeshConfig names for all proxies.
func ofMesh(mesh *meshconfig.MeshConfig) []*accesslogv3.AccessLog {
	if mesh.GetAccessLogFile() == "" {
		return nil
	}
	f := &filev3.FileAccessLog{Path: mesh.GetAccessLogFile()}
	fields, err := validate.LogFields(mesh.GetAccessLogFormat())
	switch {
	case mesh.GetAccessLogEncoding() != meshconfig.MeshConfig_JSON:
		f.AccessLogFormat = text(mesh.GetAccessLogFormat(), false)
	case err != nil: // it is empty: the validation refuses what is no JSON
		f.AccessLogFormat = labels(jsonFields(), false)
	default:
		f.AccessLogFormat = labels(fields, false)
	}
	return []*accesslogv3.AccessLog{file(f)}
}

// ofProvider returns the access log of a provider; nil: the mesh has no such provider.
func ofProvider(mesh *meshconfig.MeshConfig, name string) *accesslogv3.AccessLog {
	if validate.LogProvider(mesh, name) != "" {
		return nil
	}
	var p *meshconfig.MeshConfig_ExtensionProvider_EnvoyFileAccessLogProvider // the built-in one, if the mesh names none
	for _, e := range mesh.GetExtensionProviders() {
		if e.GetName() == name {
			p = e.GetEnvoyFileAccessLog()
		}
	}
	f := &filev3.FileAccessLog{Path: cmp.Or(p.GetPath(), stdout)}
	switch fields := p.GetLogFormat().GetLabels(); {
	case fields == nil:
		f.AccessLogFormat = text(p.GetLogFormat().GetText(), p.GetOmitEmptyValues())
	case len(fields.GetFields()) == 0:
		f.AccessLogFormat = labels(jsonFields(), p.GetOmitEmptyValues())
	default:
		f.AccessLogFormat = labels(fields, p.GetOmitEmptyValues())
	}
	return file(f)
}

func file(f *filev3.FileAccessLog) *accesslogv3.AccessLog {
	return &accesslogv3.AccessLog{Name: "envoy.access_loggers.file", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: piece.Any(f)}}
}

// text returns a format of lines; Envoy adds no line break.
func text(format string, omit bool) *filev3.FileAccessLog_LogFormat {
	format = cmp.Or(format, textFormat)
	if !strings.HasSuffix(format, "\n") {
		format += "\n"
	}
	return &filev3.FileAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
		Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: format},
		}},
		OmitEmptyValues: omit,
	}}
}

func labels(fields *structpb.Struct, omit bool) *filev3.FileAccessLog_LogFormat {
	return &filev3.FileAccessLog_LogFormat{LogFormat: &corev3.SubstitutionFormatString{
		Format: &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: fields}, OmitEmptyValues: omit,
	}}
}

// matches reports whether an entry is for servers, or for clients.
func matches(l *telemetry.AccessLogging, server bool) bool {
	switch l.GetMatch().GetMode() {
	case telemetry.WorkloadMode_CLIENT:
		return !server
	case telemetry.WorkloadMode_SERVER:
		return server
	default:
		return true
	}
}

// names returns the providers that an entry names, or else those that it inherits.
func names(l *telemetry.AccessLogging, inherited []string) []string {
	if len(l.GetProviders()) == 0 {
		return inherited
	}
	var all []string
	for _, p := range l.GetProviders() {
		all = append(all, p.GetName())
	}
	return all
}

// providers merges the levels, the widest first, into the providers that log; sorted. The
// providers that a level names replace those of the levels above (TL-1).
func providers(mesh *meshconfig.MeshConfig, levels []*telemetry.Telemetry, server bool) []string {
	inherited := mesh.GetDefaultProviders().GetAccessLogging()
	if len(levels) == 0 {
		return slices.Compact(slices.Sorted(slices.Values(inherited)))
	}
	scope := inherited
	for _, t := range levels {
		var named []string
		for _, l := range t.GetAccessLogging() {
			if matches(l, server) {
				named = append(named, names(l, nil)...)
			}
		}
		if len(named) > 0 {
			scope = named
		}
	}
	on := map[string]bool{}
	for _, t := range levels {
		for _, l := range t.GetAccessLogging() {
			inherited = names(l, inherited)
			for _, name := range inherited {
				switch {
				case !slices.Contains(scope, name) || !matches(l, server):
				case l.GetDisabled().GetValue():
					delete(on, name)
				default:
					on[name] = true
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(on))
}

// Problems is the part that reports what Telemetries of proxies of LDSClass.Telemetry name and
// the mesh does not have.
type Problems struct{ Selected index.SelectorSet }

// Make implements piece.Part.
func (p Problems) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	mesh := r.Mesh()
	inherited := mesh.GetDefaultProviders().GetAccessLogging()
	var all []problem.Diagnostic
	for _, o := range r.Telemetry(p.Selected) {
		t, ok := o.Message.(*telemetry.Telemetry)
		if !ok {
			continue
		}
		for i, l := range t.GetAccessLogging() {
			d := problem.Diagnostic{Severity: problem.Warning, Code: "provider", Key: o.Key, Advice: "name one of MeshConfig.extensionProviders with envoyFileAccessLog"}
			for j, named := range l.GetProviders() {
				if d.Reason = validate.LogProvider(mesh, named.GetName()); d.Reason == "" {
					continue
				}
				d.Field, d.Effect = fmt.Sprintf("spec.accessLogging[%d].providers[%d].name", i, j), "the provider gets no access log"
				all = append(all, d)
			}
			if inherited = names(l, inherited); len(inherited) == 0 && !l.GetDisabled().GetValue() {
				d.Field, d.Effect = fmt.Sprintf("spec.accessLogging[%d].providers", i), "the entry logs nothing"
				d.Reason = "it names no provider, and neither do the Telemetries above it nor defaultProviders.accessLogging of MeshConfig"
				all = append(all, d)
			}
		}
	}
	return nil, all
}
