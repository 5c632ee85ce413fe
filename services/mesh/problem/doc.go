// Package problem holds the type for a problem in user data: which object and
// field, what is wrong, what to do, and what the system does meanwhile.
//
// It is pure.
package problem
