// Package published formats the line that processes log about a published version.
// It is pure.
package published

import (
	"fmt"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// Attrs are the attributes of a version, for slog: which one it is, how many
// positions of the log and how many keys it spans, and why it was made.
func Attrs(m *store.Manifest) []any {
	return []any{
		"version", store.VersionOf(m.GetVersion()),
		"positions", Positions(m), "keys", m.GetChangeCount(), "cause", Cause(m),
	}
}

// Positions is how many records of the log came since the version before; since
// the log began where that was of an earlier epoch.
func Positions(m *store.Manifest) uint64 {
	if before := m.GetPrevious(); before.GetEpoch() == m.GetVersion().GetEpoch() {
		return m.GetVersion().GetSeq() - before.GetSeq()
	}
	return m.GetVersion().GetSeq()
}

// Cause names the first of the objects that changed, and the record that
// changed it; empty where none did.
func Cause(m *store.Manifest) string {
	if len(m.GetChanges()) == 0 {
		return ""
	}
	first := m.GetChanges()[0]
	cause := Object(first.GetKey())
	if first.GetRemoved() {
		cause += " removed"
	}
	if first.GetSeq() != 0 {
		cause += fmt.Sprintf(", #%d", first.GetSeq())
	}
	if more := m.GetChangeCount() - 1; more > 0 {
		cause += fmt.Sprintf(", and %d more", more)
	}
	return cause
}

// Object returns the object or overlay that the key of a content row names.
func Object(row string) string {
	key, overlay, err := ident.ParseRow(row)
	switch {
	case err != nil:
		return row
	case overlay != "":
		return "overlay " + overlay
	}
	return key.String()
}
