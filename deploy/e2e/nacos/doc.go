// Package nacos tests meshlog with a real Nacos server and a real Envoy, from a registered
// instance to the requests that reach it. Its tests have the build tag `registries`.
package nacos
