// Package faultsim runs the real fold, builder, publish loop and replica under
// seeded schedules of failures, and checks the invariants M1 to M8 and SIM-1 to
// SIM-8. All of it is a test; README.md says how to run it and how to read a
// trace.
package faultsim
