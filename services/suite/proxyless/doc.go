// Package proxyless tests what gRPC clients are served, which are their own proxy:
// the resources that are generated for them, and with a real one that it takes them.
package proxyless
