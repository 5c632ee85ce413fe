// Package apply has the commands that change and read the objects of the source
// ident.API, which no watcher publishes: apply, delete and get.
//
// A change is a session of its own: its begin is fenced on the last session of the
// source, its alive ends it, and the fold applies what lies between as one change set,
// or nothing. Nothing is swept. The fold judges the change before anything is written.
package apply
