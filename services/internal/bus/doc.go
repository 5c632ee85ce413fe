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
//	# Address of the bus. The keys of its users are in the directory auth.
//	url: nats://127.0.0.1:40121
//	pid: 4711
//
// DATA/bus is replaced in one step. The directory DATA/auth has the key of each
// role; a process that is given the path of a bus file takes the key of its role
// from the directory beside the file.
//
// # Core subjects
//
// Soft state goes over subjects without a stream. <domain> is the name of the
// mesh; in names each byte but [A-Za-z0-9_-] is =HH:
//
//	meshlog.fleet.<domain>.tick                       the leader's Tick, once a second
//	meshlog.fleet.<domain>.digests                    DigestRequest; only the leader answers
//	meshlog.fleet.<domain>.listing.<source>.<inst>    ListingRequest, to a shard's watchers
//	meshlog.fleet.<domain>.issuers                    token issuers that the world names, from builders
//	                                                  to watchers of the source jwks
//	meshlog.fleet.<domain>.report.frontend.<id>       FrontendReport, a summary
//	meshlog.fleet.<domain>.report.watcher.<holder>.<source>.<inst>  WatcherReport
//	meshlog.fleet.<domain>.report.builder.<id>        BuilderReport, a summary
//	meshlog.fleet.<domain>.ask.<role>                 ReportRequest; every builder, frontend or watcher
//	                                                  answers with a report
//	meshlog.fleet.<domain>.proxy                      ProxyRequest; every frontend answers
//	meshlog.key.<domain>.<source>.<inst>              a frontend's request for a key; one of the shard's
//	                                                  watchers answers
//
// # Answers
//
// A request may name any subject as its reply. A process answers only if the reply
// is an inbox: it begins with _IN., or with _R_. if the server rewrote it because
// the request came from another account (BUS-2). Each role has its own account and
// its own subject under ask, so an answer under the name of another role is
// dropped. The watchers of all shards share a subject, so a watcher can answer under
// the name of another shard's. On that depend tables for people, and `meshlog sources
// remove`, which refuses while a watcher answers for the source.
//
// An answer that is too large for a message is cut into several. Each has its number
// in the header Meshlog-Part, such as 2/3; the asker joins their bytes by
// Meshlog-Name. It drops an answer without all parts: the process is silent.
//
// Answerers are not trusted: a question takes at most 10 s and 128 MiB of the answers
// of a role, and names the process that sent the most when it leaves answers out. It
// ignores messages that say that nobody listens, which any answerer can send.
package bus
