// Package serve holds the command `serve`: a frontend that serves one version of the past
// to debug Envoys, and that marks all it serves, so that nothing mistakes it for the present.
package serve
