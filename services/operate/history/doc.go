// Package history has the commands about the past of a mesh: its log, its
// versions, and the archives that hold both.
package history
