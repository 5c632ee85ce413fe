// Package act has the commands that change a mesh: its log, or the streams and
// the users of its bus.
package act
