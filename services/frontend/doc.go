// Package frontend serves Envoys over xDS from a replica of the published
// world.
//
// A frontend follows the version chain (package replica), keeps what it serves
// encoded once per content (package content), and runs one state machine for
// each stream (package stream). This package is what has goroutines and
// sockets: the gRPC server, its limits, and the drain. It knows neither the
// log nor who builds versions, and serves on from its own store when everything
// else is dead.
package frontend
