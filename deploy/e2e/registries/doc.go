// Package registries runs meshes whose services are in a real registry. Its tests are behind
// the build tag `registries`: `make test-registries`.
package registries
