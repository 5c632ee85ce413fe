// Package suite is the acceptance suite of the drivers of the log. All of it is a
// test: suite_test.go has the table of drivers, append_test.go, read_test.go and
// follow_test.go the cases, and NAME_test.go the adapter of driver NAME.
//
// If two drivers differ in a way that their documentation does not state, a case is
// missing here. To add a driver, write the function that opens it as a Driver, and
// add it to the table.
//
//	go test ./events/suite                       # every driver
//	go test ./events/suite -run '/^natslog$'     # one driver
package suite
