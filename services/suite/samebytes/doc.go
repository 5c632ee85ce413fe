// Package samebytes proves that a change of the code changes no byte that Envoys
// and gRPC clients are served. All of it is a test; README.md says what lies in
// testdata, and what to do when the test fails.
package samebytes
