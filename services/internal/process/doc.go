// Package process is what every process has in common: settings, a log,
// signals, an identity of its build, and the admin server.
//
// # Settings
//
// What can be set is a flag, and the text of the flag is its manual: --help
// prints it, and deploy/config has it as a commented settings file for each
// process, which a test holds to the flags (processtest). A settings file
// (--settings FILE) is YAML that maps the flags' names to values, and each has
// a variable: --bus-token-file is MESHLOG_BUS_TOKEN_FILE. A flag overrides its
// variable, the variable the file, the file the default:
//
//	# builder.yaml
//	id: builder-1
//	bus: nats://nats-0:4222,nats://nats-1:4222
//	bus-token-file: /var/run/meshlog/token
//
// All that is wrong is said at once, with file and line, key, value, reason and
// the nearest known name. A key that is unknown or there twice is an error. An
// unknown MESHLOG_ variable is none: one environment may be that of several
// programs, and Kubernetes adds its own; one that looks misspelt is warned of.
//
// --check goes on to what the settings name (credentials, certificates, data
// directory, documents), says all that is wrong, starts nothing and ends with 0
// or 2.
//
// # Health
//
// Each process has a command `health` that asks it whether it is ready, or with
// --live whether it runs, and ends with 0 or 1. It takes the same flags,
// variables and file, so that no address is said twice.
//
// # Log
//
// Lines say which component they are from, and --log-level sets the level of
// each: info,frontend=debug. Components are admin, builder, bus, frontend,
// watcher, and xds, which is what happens on streams; what is from none is the
// process's own. PUT /debug/log?level= takes the same while the process runs:
// a level alone is that of all components but those named after it, a pair
// changes one.
//
// # Admin server
//
//	/                an index of what follows
//	/healthz         200 while the process runs
//	/readyz          200 when it does its job, else 503 with a line for each reason;
//	                 what is wrong and keeps it from nothing, as a warning
//	/metrics         for Prometheus
//	/debug/log       levels of the log; PUT changes them
//	/debug/settings  all settings, and where each comes from
//	/debug/...       what the parts of the process report, as JSON
//	/debug/pprof/    with --pprof
//
// The pages under /debug/ are for this machine, and for who sends the token of
// --admin-token-file as `Authorization: Bearer TOKEN`. A request that a proxy on
// this machine passed on (X-Forwarded-For) counts as one from elsewhere, as does
// one for another name than localhost or an address of loopback, which a web
// page may have made a browser here send. Two are answered at a time.
//
// # Traces
//
// With --trace-endpoint, or OpenTelemetry's OTEL_EXPORTER_OTLP_ENDPOINT, spans of
// what the process does with changes are exported as OTLP over HTTP; without,
// there is neither a span nor a goroutine for it.
//
// # Exit codes
//
//	0  it was told to end, and ended in order
//	1  it failed; standard error says why
//	2  it was called in a way it does not understand
package process
