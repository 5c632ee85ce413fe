// Package process has the parts that all processes share: settings, log, signals,
// the identity of the build, traces, and the admin server. README.md describes
// them for users.
//
// The exit code of a process is 0 after a signal, in order; 1 if it failed, as
// standard error says; 2 for wrong flags, arguments or settings.
package process
