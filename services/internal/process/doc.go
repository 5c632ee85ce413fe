// Package process has the parts that all processes share: settings, log, signals,
// the identity of the build, traces, and the admin server.
//
// # Settings
//
// Every setting is a flag, and the flag's text is its manual: --help prints it,
// and deploy/config has it in a commented settings file for each process, which
// a test generates from the flags (processtest). A settings file (--settings
// FILE) is YAML that maps the flags' names to values. Each flag also has a
// variable: that of --bus-token-file is MESHLOG_BUS_TOKEN_FILE. A flag overrides
// its variable, the variable overrides the file, and the file overrides the
// default:
//
//	# builder.yaml
//	id: builder-1
//	bus: nats://nats-0:4222,nats://nats-1:4222
//	bus-token-file: /var/run/meshlog/token
//
// A process reports all errors at once, with file and line, key, value, reason
// and the nearest known name. Unknown and repeated keys are errors. An unknown
// MESHLOG_ variable is not, because programs may share an environment and
// Kubernetes adds variables; the process warns if it looks misspelt.
//
// --check also checks what the settings name (credentials, certificates, data
// directory, documents). It starts nothing and exits with 0 or 2.
//
// # Health
//
// The command `health` of each process checks whether the process is ready, or
// with --live whether it runs, and exits with 0 or 1. It takes the same flags,
// variables and file, so that the address is configured once.
//
// # Log
//
// Each line names its component, and --log-level sets the level of each:
// info,frontend=debug. Components are admin, builder, bus, frontend, watcher, and
// xds for the streams of proxies; lines without one are the process's own. PUT
// /debug/log?level= takes the same value in a running process: a level alone
// applies to all components except those in the same value, a pair changes one.
//
// # Admin server
//
//	/                an index of these pages
//	/healthz         200 while the process runs
//	/readyz          200 when the process is ready, else 503 with a line for each
//	                 reason; also warnings, which do not affect readiness
//	/metrics         for Prometheus
//	/debug/log       log levels; PUT changes them
//	/debug/settings  all settings and their origins
//	/debug/...       reports of the parts of the process, as JSON
//	/debug/pprof/    with --pprof
//
// The pages under /debug/ are open to this machine, and to requests with the token
// of --admin-token-file as `Authorization: Bearer TOKEN`. A request that a proxy on
// this machine forwarded (X-Forwarded-For) does not count as local, nor does one
// whose host is not localhost or a loopback address, which a web page can make a
// local browser send. The server answers at most two at a time.
//
// # Traces
//
// With --trace-endpoint, or OpenTelemetry's OTEL_EXPORTER_OTLP_ENDPOINT, the
// process exports spans for its work on changes as OTLP over HTTP. Without them,
// tracing costs neither a span nor a goroutine.
//
// # Exit codes
//
//	0  stopped by a signal, in order
//	1  failed; standard error says why
//	2  wrong flags, arguments or settings
package process
