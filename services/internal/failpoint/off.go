//go:build !faults

package failpoint

// At does nothing in a program that is built without the tag faults.
func At(Point) {}
