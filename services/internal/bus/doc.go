// Package bus is NATS for the processes: the embedded server, connections, the
// set-up of the streams, the lease of the leading builder, and the reports
// that the processes send each other over core subjects.
//
// What the log and the version chain are made of is the business of
// events/natslog and store/natsfeed; no other package imports the client.
//
// # The bus file
//
// A server that [StartServer] starts writes DATA/bus, readable by its owner
// only, and removes it when it is closed:
//
//	# Where the bus is, and the token that opens it.
//	url: nats://127.0.0.1:40121
//	token: 3PZ0cGq...
//	pid: 4711
//
// The token is a new one for every server; DATA/bus is replaced in one step.
//
// # Core subjects
//
// What is only observed goes over subjects that no stream keeps; <domain> is
// the name of the mesh, and in names each byte but [A-Za-z0-9_-] is =HH:
//
//	meshlog.fleet.<domain>.tick                       the leader's Tick, once a second
//	meshlog.fleet.<domain>.digests                    DigestRequest; only the leader answers
//	meshlog.fleet.<domain>.listing.<source>.<inst>    ListingRequest, to a shard's watchers
//	meshlog.fleet.<domain>.report.frontend.<id>       FrontendReport, a summary
//	meshlog.fleet.<domain>.report.watcher.<holder>.<source>.<inst>  WatcherReport
//	meshlog.fleet.<domain>.report.builder.<id>        BuilderReport, a summary
//	meshlog.fleet.<domain>.ask                        ReportRequest; everybody answers to its
//	                                                  inbox with a report, in several messages if it is large
//	meshlog.fleet.<domain>.proxy                      ProxyRequest; every frontend answers to its inbox
package bus
