// Package floor measures the costs that no control plane can avoid on a machine:
// the cost of one change for a NATS server and its disk alone (Measure), and the
// cost of writing responses to many streams for grpc-go alone (Serve).
package floor
