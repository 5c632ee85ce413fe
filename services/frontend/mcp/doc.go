// Package mcp makes what a frontend sends to the clients of MCP-over-xDS, its sinks: Istio's
// objects of the served version, the services of registries as ServiceEntries among them.
// Catalog makes the sets, Stream is the state of the protocol.
//
// It does no IO and has no clock and no goroutines. Rows and decisions are in README.md.
package mcp
