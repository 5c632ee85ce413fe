package model

import (
	"fmt"
	"strings"
)

// Shard is the part of the world that one source instance speaks for.
type Shard struct{ Source, Instance string }

// String is source/instance.
func (s Shard) String() string { return s.Source + "/" + s.Instance }

// Key names one object of one source.
type Key struct {
	Source    string
	Instance  string
	Kind      string
	Namespace string // empty for what has none
	Name      string
}

// Shard is whose word about the key counts.
func (k Key) Shard() Shard { return Shard{k.Source, k.Instance} }

// String is for people: Kind namespace/name (source/instance), the latter where
// it is known.
func (k Key) String() string {
	name := k.Name
	if k.Namespace != "" {
		name = k.Namespace + "/" + name
	}
	name = k.Kind + " " + name
	if k.Source == "" {
		return name
	}
	return name + " (" + k.Shard().String() + ")"
}

const (
	valuePrefix   = "v/"
	overlayPrefix = "o/"
)

var (
	escapeRow   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescapeRow = strings.NewReplacer("%2F", "/", "%25", "%")
)

// Row is the key of the content row that holds k's last good value:
// v/source/instance/kind/namespace/name, with "/" and "%" escaped.
func (k Key) Row() string {
	parts := []string{k.Source, k.Instance, k.Kind, k.Namespace, k.Name}
	for i, p := range parts {
		parts[i] = escapeRow.Replace(p)
	}
	return valuePrefix + strings.Join(parts, "/")
}

// OverlayRow is the key of the content row of an overlay.
func OverlayRow(id string) string { return overlayPrefix + id }

// ParseRow reads a content row's key: of a value (overlay is ""), or of an
// overlay.
func ParseRow(row string) (k Key, overlay string, err error) {
	if id, ok := strings.CutPrefix(row, overlayPrefix); ok && id != "" {
		return Key{}, id, nil
	}
	rest, ok := strings.CutPrefix(row, valuePrefix)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 5 {
		return Key{}, "", fmt.Errorf("content row %q: want %ssource/instance/kind/namespace/name or %sid", row, valuePrefix, overlayPrefix)
	}
	for i, p := range parts {
		parts[i] = unescapeRow.Replace(p)
	}
	return Key{parts[0], parts[1], parts[2], parts[3], parts[4]}, "", nil
}
