// Package explain holds the commands that explain what a proxy is served: `why` and
// `why-not`.
package explain
