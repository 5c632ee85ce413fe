// Package bisect holds the command `bisect`, which finds the version, and then the record of
// the log, from which on a proxy's configuration is good or bad.
package bisect
