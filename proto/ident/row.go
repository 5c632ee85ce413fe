package ident

import (
	"fmt"
	"strings"
)

// What the keys of content rows begin with: the rows of values and of overlays.
const (
	ValuePrefix   = "v/"
	OverlayPrefix = "o/"
)

var (
	escapeRow   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescapeRow = strings.NewReplacer("%2F", "/", "%25", "%")
)

// Row returns the key of the content row that holds k's last good value:
// v/source/instance/kind/namespace/name, with "/" and "%" escaped.
func (k Key) Row() string {
	parts := []string{k.Source, k.Instance, k.Kind, k.Namespace, k.Name}
	for i, p := range parts {
		parts[i] = escapeRow.Replace(p)
	}
	return ValuePrefix + strings.Join(parts, "/")
}

// OverlayRow returns the key of the content row of an overlay.
func OverlayRow(id string) string { return OverlayPrefix + id }

// ParseRow reads the key of a content row: of a value, then overlay is empty, or
// of an overlay, then k is zero.
func ParseRow(row string) (k Key, overlay string, err error) {
	if id, ok := strings.CutPrefix(row, OverlayPrefix); ok && id != "" {
		return Key{}, id, nil
	}
	rest, ok := strings.CutPrefix(row, ValuePrefix)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 {
		return Key{}, "", fmt.Errorf("content row %q: want %ssource/instance/kind/namespace/name or %sid", row, ValuePrefix, OverlayPrefix)
	}
	for i, p := range parts {
		parts[i] = unescapeRow.Replace(p)
	}
	return Key{parts[0], parts[1], parts[2], parts[3], parts[4]}, "", nil
}
