// Package table provides immutable maps for indexes that change a little at a
// time: a Table, Groups of members by a key of their group, and a Counter. The
// next map shares all that did not change with the one before it. A map is
// changed through an Edit, which one goroutine uses; maps themselves are safe
// for concurrent use. As with Go's maps, a walk has no order.
package table
