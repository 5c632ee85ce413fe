package model

import (
	"iter"
	"time"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"
)

// Object is what is served for a key, decoded.
type Object struct {
	Key     Key
	Created time.Time // zero where its source has none
	Value   Value
	Message proto.Message // must not be changed
}

// World is the effective world at a position: per object the copy that wins.
// It is immutable.
type World struct{}

// NewWorld returns the empty world.
func NewWorld() *World { panic("to come") }

// Apply returns the world after a change, and the keys of the objects that
// are served otherwise than before: changed, new, gone, or no longer (or only
// now) the copy that wins. Sorted. The error means that rows are not what a
// fold writes.
func (w *World) Apply(c Change) (*World, []Key, error) { panic("to come") }

// Objects yields the winning objects of a kind, sorted by namespace and name.
func (w *World) Objects(kind string) iter.Seq[Object] { panic("to come") }

// Object returns the winning object of that kind and name.
func (w *World) Object(kind, namespace, name string) (Object, bool) { panic("to come") }

// Served returns the object of that very key if it is the one that wins.
func (w *World) Served(k Key) (Object, bool) { panic("to come") }

// Policy is the MeshPolicy that counts.
func (w *World) Policy() Policy { panic("to come") }

// MeshConfig is Istio's, with defaults; it must not be changed.
func (w *World) MeshConfig() *meshconfig.MeshConfig { panic("to come") }

// Diagnostics are about what is not served: copies that lose, and values that
// this build cannot read. Sorted.
func (w *World) Diagnostics() []Diagnostic { panic("to come") }

// Opaque is how many rows this build cannot read.
func (w *World) Opaque() int { panic("to come") }
