// Package floor is what no control plane can go below on a machine: what a
// NATS server and its disk alone cost for one change (Measure), and what
// grpc-go alone costs to write responses to many streams (Serve).
package floor
