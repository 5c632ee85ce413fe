package content

import (
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/xds"
)

// View is what one class is served at one version of the world. While content
// does not change, its Sets are the same pointers in later versions.
type View struct {
	Version   ident.Position
	Published time.Time // by the clock of the leader, for people; zero: not said
	Sets      [ident.ResourceTypes]*xds.Set
	// Quarantined are names of which Sets have something else than the world
	// says, or nothing.
	Quarantined [ident.ResourceTypes][]string
	// Until is the newest version at which the client's View before this one was
	// still all that it should have; zero: there was none.
	Until ident.Position
}
