// Package scenario tests what the whole pure part does, from the documents that
// a user writes to what an Envoy is served. All of it is a test; README.md says
// how to read and write the stories in testdata.
package scenario
