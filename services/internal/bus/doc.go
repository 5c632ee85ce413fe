// Package bus connects the processes through NATS: it has the embedded server,
// connections, checks of the streams, the lease of the leading builder, and the
// reports that the processes send each other over core subjects.
//
// The log is in events/natslog, the version chain in store/natsfeed; no other
// package imports the client library.
//
// # The bus file
//
// A server that [StartServer] starts writes DATA/bus, readable by its owner
// only, and removes it when it is closed:
//
//	# Address of the bus, and the token of its clients.
//	url: nats://127.0.0.1:40121
//	token: 3PZ0cGq...
//	pid: 4711
//
// Each server has a new token; DATA/bus is replaced in one step.
//
// # Core subjects
//
// Soft state goes over subjects without a stream. <domain> is the name of the
// mesh; in names each byte but [A-Za-z0-9_-] is =HH:
//
//	meshlog.fleet.<domain>.tick                       the leader's Tick, once a second
//	meshlog.fleet.<domain>.digests                    DigestRequest; only the leader answers
//	meshlog.fleet.<domain>.listing.<source>.<inst>    ListingRequest, to a shard's watchers
//	meshlog.fleet.<domain>.report.frontend.<id>       FrontendReport, a summary
//	meshlog.fleet.<domain>.report.watcher.<holder>.<source>.<inst>  WatcherReport
//	meshlog.fleet.<domain>.report.builder.<id>        BuilderReport, a summary
//	meshlog.fleet.<domain>.ask                        ReportRequest; every process answers to its
//	                                                  inbox with a report
//	meshlog.fleet.<domain>.proxy                      ProxyRequest; every frontend answers to its inbox
//
// An answer that is too large for a message is cut into several. Each has its number
// in the header Meshlog-Part, such as 2/3; the asker joins their bytes by
// Meshlog-Name. It drops an answer without all parts: the process is silent.
package bus
