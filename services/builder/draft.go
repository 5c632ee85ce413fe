package builder

import (
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// draft is the world that the next version will hold. It lags the ledger by the
// changes in unbuilt.
type draft struct {
	gate     *gate.Gate
	world    *world.World
	problems []problem.Diagnostic // of the last build
	unbuilt  unbuilt
	err      error // of the last build
}

// add takes a change of the ledger's content.
func (d *draft) add(c world.Change) {
	if c.Reset {
		d.unbuilt = unbuilt{}
	}
	d.unbuilt.add(c)
}

// build applies the changes to the world, and builds from it what frontends will
// build. After an error the world is as before. failed says that this build
// failed; without any change since, err is that of the last build.
func (d *draft) build() (failed bool, err error) {
	if d.unbuilt.records == 0 {
		return false, d.err
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
		failed, d.err = err != nil, err
	}()
	next, keys, err := d.world.Apply(d.unbuilt.change())
	if err != nil {
		return true, fmt.Errorf("world: %w", err)
	}
	problems, err := d.gate.Build(next, keys)
	if err != nil {
		return true, fmt.Errorf("gate: %w", err)
	}
	d.world, d.problems, d.unbuilt = next, problems, unbuilt{}
	return false, nil
}

// unbuilt holds the changes since the world was built last. The content bounds
// it, however long the stretch of the log is.
type unbuilt struct {
	reset     bool
	rows      map[string]world.RowChange // the newest change of each
	records   int                        // that changed something
	endpoints int                        // records that changed endpoints only
}

func (u *unbuilt) add(c world.Change) {
	if u.rows == nil || c.Reset {
		u.rows = map[string]world.RowChange{}
	}
	u.reset = u.reset || c.Reset
	u.records++
	if c.EndpointsOnly {
		u.endpoints++
	}
	for _, r := range c.Rows {
		u.rows[r.Row] = r
	}
}

// change returns all changes as one.
func (u *unbuilt) change() world.Change {
	c := world.Change{Reset: u.reset, EndpointsOnly: u.endpoints == u.records}
	for _, row := range slices.Sorted(maps.Keys(u.rows)) {
		if r := u.rows[row]; r.Value != nil || !u.reset {
			c.Rows = append(c.Rows, r)
		}
	}
	return c
}
