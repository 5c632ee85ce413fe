package accesslog

import (
	"cmp"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	"google.golang.org/protobuf/types/known/structpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/services/mesh/kind/validate"
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

// fileOfMesh returns the log in a file with the format that a MeshConfig sets for all proxies.
func fileOfMesh(mesh *meshconfig.MeshConfig, path string) *accesslogv3.AccessLog {
	f := &filev3.FileAccessLog{Path: path}
	fields, err := validate.LogFields(mesh.GetAccessLogFormat())
	switch {
	case mesh.GetAccessLogEncoding() != meshconfig.MeshConfig_JSON:
		f.AccessLogFormat = text(mesh.GetAccessLogFormat(), false)
	case err != nil: // it is empty: the validation refuses what is no JSON
		f.AccessLogFormat = labels(jsonFields(), false)
	default:
		f.AccessLogFormat = labels(fields, false)
	}
	return file(f)
}

// fileOf returns the log in a file of a provider; nil is the one that every mesh has. As in
// Istio the one of the built-in name has the format of the MeshConfig if it names none.
func fileOf(mesh *meshconfig.MeshConfig, of *provider) *accesslogv3.AccessLog {
	p := of.GetEnvoyFileAccessLog()
	path := cmp.Or(p.GetPath(), stdout)
	if cmp.Or(of.GetName(), validate.BuiltInLog) == validate.BuiltInLog && p.GetLogFormat() == nil && !p.GetOmitEmptyValues() {
		return fileOfMesh(mesh, path)
	}
	f := &filev3.FileAccessLog{Path: path}
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
