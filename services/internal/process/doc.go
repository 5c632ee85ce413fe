// Package process is what every process has in common: settings, a log,
// signals, an identity of its build, and the admin server.
//
// # Settings
//
// What can be set is a flag, so --help is the manual. A settings file
// (--settings FILE) is YAML that maps the flags' names to values, and each has
// a variable: --bus-token-file is MESHLOG_BUS_TOKEN_FILE. A flag overrides its
// variable, the variable the file, the file the default:
//
//	# builder.yaml
//	id: builder-1
//	bus: nats://nats-0:4222,nats://nats-1:4222
//	bus-token-file: /var/run/meshlog/token
//
// # Admin server
//
//	/           an index of what follows
//	/healthz    200 while the process runs
//	/readyz     200 when it does its job, else 503 with a line for each reason
//	/metrics    for Prometheus
//	/debug/...  what the process reports, as JSON; /debug/pprof
//
// # Exit codes
//
//	0  it was told to end, and ended in order
//	1  it failed; standard error says why
//	2  it was called in a way it does not understand
package process
