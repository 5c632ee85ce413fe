// Package e2e tests the programs in bin/ from outside, with a real NATS server
// and a real Envoy: what a file that is saved does to the requests that flow.
package e2e
