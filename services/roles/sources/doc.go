// Package sources runs the watchers that a file lists, for watcher-sources and for
// `meshlog up`. The file is read again while they run: a new entry starts a watcher, a
// changed one restarts its watcher, and one that is gone stops it, whose objects stay as
// they are until an operator drops them (AGG-6, AGG-7).
//
// An Istio MeshConfig names sources, too, in its configSources, and is itself published
// (MC-18).
//
// The watchers are independent of each other: one that fails is started again, and stops
// neither another nor the process (AGG-8).
package sources
