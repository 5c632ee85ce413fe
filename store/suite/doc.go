// Package suite is the acceptance suite of stores and version chains. All of it is a
// test: suite_test.go has the tables of drivers, store_test.go and chain_test.go the
// cases, and NAME_test.go the adapters of driver NAME.
//
// If two drivers differ in a way that their documentation does not state, a case is
// missing here. To add a store or a chain, implement Disk or Bus and add it to its
// table.
//
//	go test ./store/suite                               # every driver
//	go test ./store/suite -run 'TestChain/^natsfeed$'   # one chain
package suite
