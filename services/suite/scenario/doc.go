// Package scenario tests all pure code together, from the documents that a user
// writes to the resources that an Envoy is served. All of it is a test;
// README.md says how to read and write the stories in testdata.
package scenario
