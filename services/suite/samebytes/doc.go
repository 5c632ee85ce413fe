// Package samebytes proves that a change of the code changes no byte that Envoys
// and gRPC clients are served. It has no code but its tests.
//
// testdata holds archives of logs, written by the code that `meshlog export`
// runs. The test replays each archive and serves it to a fixed list of nodes, as
// a frontend would. It digests every resource that a node is served, at every
// version of the log, and compares the digests with those in the tree: a build
// serves the same bytes as the build that wrote the digests, or the test fails.
//
// Beside each archive lie two text files:
//
//	NAME.archive   the log, and the documents of which its records were made
//	NAME.nodes     the nodes: one a line, see Nodes
//	NAME.digests   what each node is served at each version, see Digests
//	NAME.objects   what this build makes of the documents in the archive
//
// A world whose archive would exceed 1 MB has no archive: the test generates
// its log. It has nodes and digests like the others.
//
// # When the test fails
//
// The test prints the first differences: archive, version, node, type and
// resource. If the change was not meant, correct it. If it was meant, run
//
//	go test ./services/suite/samebytes -update
//
// and say in the commit message which digests changed, and why. To see what is
// in the bytes that differ, run
//
//	go test ./services/suite/samebytes -lines /absolute/DIR
//
// with both builds and compare the two directories. It writes the digest of
// every resource, also those of worlds whose golden file has one line a type,
// and each distinct resource as text in DIR/resources/<digest>.
//
// # Versions
//
// Records that lie less than 100 ms apart, by the log's own time, are one
// version: a watcher writes the objects of one change close together. The rule
// looks at the log only, so the versions do not depend on how a builder batches
// records. A version with the content and the problems of the one before is left
// out.
//
// # Nodes
//
//	NAME: NODE-ID [LABEL=VALUE ...] [@METADATA=VALUE ...] [%FIELD=VALUE ...]
//
// A metadata value that begins with { or [ is JSON. The fields are %cluster,
// %locality=REGION/ZONE/SUBZONE, %agent=NAME/VERSION (default envoy/1.40.0) and
// %names: the Listeners, with commas, that a gRPC client subscribes to. Such a
// client is served these, and the routes, clusters and endpoints that they name;
// every other node is served all resources of its class. A value with spaces
// stands in double quotes.
//
// # Digests
//
// A line says what differs from the version before:
//
//	@ 1.12 ROOT               a version, and the Merkle root of its content
//	! 2 error invalid OBJECT FIELD
//	                          problems of that severity, code, object and field
//	> NODE CDS 23 VERSION DIGEST
//	                          how many resources the node is served of the type,
//	                          their version on the wire, and the digest over the
//	                          names and digests of all of them
//	> NODE CDS = OTHER        the same as the node OTHER, which stands before
//	+ DIGEST NAME             a resource of this node and type
//	- NAME                    the resource is not served any more
//
// A digest is the first 16 hex digits of a SHA-256. That of a resource is over
// the bytes that stand in the field resources of a DiscoveryResponse: type URL
// and message. The prose of problems is not part of it.
//
// # To add an archive
//
// Write NAME.archive, by `meshlog export` or with a recorder in this package,
// then run the test with -update: it writes the nodes, if there are none, and the
// digests. The nodes are then a sidecar and a gRPC client of each namespace, a
// router of each Gateway's selector, a node of each selector of raw resources, a
// sidecar of each cluster, and a plain Envoy; add others by hand. New stories of
// services/suite/scenario get their archives with -record.
package samebytes
