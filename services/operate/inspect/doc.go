// Package inspect has the commands that show the present state of a mesh. None
// of them changes it.
package inspect
