// Package scenario tests what the whole pure part does, from the documents that
// a user writes to what an Envoy is served: each testdata/*.txtar is a story.
//
// A story is text that says which rows of IDS.md it tells of, then
// sections, which are steps in that order:
//
//	-- proxies --
//	NAME: NODE-ID [label=value ...] [@METADATA=value ...]
//	        proxies beside the usual ones: sidecar.NS and router.NS of any
//	        namespace NS, plain (an Envoy without Istio's id), grpc
//	-- put [SOURCE/INSTANCE] FILE --
//	        from here on that is what the file holds, or the cluster:
//	        kubernetes/c1
//	-- remove [SOURCE/INSTANCE] FILE --
//	-- calls --
//	> PROXY METHOD URL [header=value ...] [to=IP]
//	> PROXY tcp IP:PORT
//	        what becomes of calls: simulated, with the endpoints that they reach
//	-- names PROXY TYPE --
//	        all resources of a type
//	-- xds PROXY TYPE NAME --
//	        a resource, as YAML
//	-- changes PROXY --
//	        what the last put or remove changed for that proxy
//	-- diagnostics --
//	        what users are told
//
// The text below ">" lines, and in the sections from names on, is output;
// `go test ./services/suite/scenario -update` writes it. A section without
// output holds "none". Look at the diff. To write a story: copy one, change the
// documents, list calls, update.
//
// Every step of every story is checked for more than it says: what changed
// incrementally is what is made from nothing, all passes its validation, and at
// the end a real Envoy takes it. The calls of all stories, but for bare
// connections, are sent to a real Envoy too, which must route them as simulated.
package scenario
