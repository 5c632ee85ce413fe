package names

import (
	"encoding/hex"
	"hash/maphash"
	"iter"

	"google.golang.org/protobuf/encoding/protowire"

	"meshlog.dev/services/mesh/xds"
)

// Wire is names as received, unparsed: a repeated string field with a number
// below 16. Its bytes belong to the received message, so a Wire is valid as
// long as they are. The zero Wire has no names.
type Wire struct {
	raw   []byte
	count int
}

// Scan reads the run of one repeated string field at the front of b, and
// returns how many bytes it takes; negative: b is malformed. It stops after
// Max+1 names.
func Scan(b []byte, field protowire.Number) (Wire, int) {
	tag := byte(protowire.EncodeTag(field, protowire.BytesType))
	n, count := 0, 0
	for n < len(b) && b[n] == tag && count <= Max {
		size, ok := skip(b[n+1:])
		if !ok {
			return Wire{}, -1
		}
		n += 1 + size
		count++
	}
	return Wire{b[:n:n], count}, n
}

// skip returns the size of a length and of the bytes that follow it.
func skip(b []byte) (int, bool) {
	if len(b) > 0 && b[0] < 0x80 && 1+int(b[0]) <= len(b) {
		return 1 + int(b[0]), true
	}
	_, n := protowire.ConsumeBytes(b)
	return n, n >= 0
}

// Join returns the names of both. It may write behind the names of w, so w is
// joined once: many short runs of names take time in proportion to their bytes.
func (w Wire) Join(o Wire) Wire {
	switch {
	case w.count == 0:
		return o
	case o.count == 0:
		return w
	}
	return Wire{append(w.raw, o.raw...), w.count + o.count}
}

// Of returns a Wire of these names.
func Of(names ...string) Wire {
	var w Wire
	for _, n := range names {
		w.raw = protowire.AppendTag(w.raw, 1, protowire.BytesType)
		w.raw = protowire.AppendString(w.raw, n)
		w.count++
	}
	return w
}

// TooMany reports whether these are more than Max names.
func (w Wire) TooMany() bool { return w.count > Max }

// Len returns the number of names as received, with duplicates and empty ones.
func (w Wire) Len() int { return w.count }

// All yields the names in their order, with duplicates. It leaves out empty names:
// no resource has one, and a client rejects a resource without a name (PRO-2).
func (w Wire) All() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for b := w.raw; len(b) > 0; {
			v, n := protowire.ConsumeBytes(b[1:])
			if n < 0 || len(v) > 0 && !yield(v) {
				return
			}
			b = b[1+n:]
		}
	}
}

// strings returns the names in w, in one piece of memory.
func (w Wire) strings() []string {
	all := string(w.raw)
	list := make([]string, 0, w.count)
	for at := 0; at < len(all); {
		size, _ := skip(w.raw[at+1:])
		at += 1 + size
		if v, _ := protowire.ConsumeBytes(w.raw[at-size:]); len(v) > 0 {
			list = append(list, all[at-len(v):at])
		}
	}
	return list
}

// Has reports whether name is among them.
func (w Wire) Has(name string) bool {
	for n := range w.All() {
		if string(n) == name {
			return true
		}
	}
	return false
}

// Mark identifies the received bytes of names, so it depends on their order.
type Mark struct {
	hash uint64
	size int
}

// Mark returns the Mark of w. It takes a few microseconds for 40 KB.
func (w Wire) Mark() Mark { return Mark{maphash.Bytes(seeds[0], w.raw), len(w.raw)} }

// Versions is initial_resource_versions as received, unparsed: a map of names
// to versions. It is valid as long as its bytes are.
type Versions struct{ entries Wire }

// VersionsIn returns the entries of a map on the wire.
func VersionsIn(entries Wire) Versions { return Versions{entries} }

// Join returns the entries of both.
func (v Versions) Join(o Versions) Versions { return Versions{v.entries.Join(o.entries)} }

// With returns v with the version of a name added.
func (v Versions) With(name, version string) Versions {
	entry := protowire.AppendTag(nil, 1, protowire.BytesType)
	entry = protowire.AppendString(entry, name)
	entry = protowire.AppendTag(entry, 2, protowire.BytesType)
	return Versions{v.entries.Join(Of(string(protowire.AppendString(entry, version))))}
}

// TooMany reports whether these are more than Max versions.
func (v Versions) TooMany() bool { return v.entries.TooMany() }

// Len returns the number of entries.
func (v Versions) Len() int { return v.entries.Len() }

// Size returns the number of bytes of the entries.
func (v Versions) Size() int { return len(v.entries.raw) }

// Clone returns v with bytes of its own.
func (v Versions) Clone() Versions {
	return Versions{Wire{append([]byte(nil), v.entries.raw...), v.entries.count}}
}

// All yields names and versions in their order.
func (v Versions) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, version []byte) bool) {
		for entry := range v.entries.All() {
			if name, version := readEntry(entry); !yield(name, version) {
				return
			}
		}
	}
}

func readEntry(b []byte) (name, version []byte) {
	for len(b) > 0 {
		field, value, n := Field(b)
		switch {
		case n < 0:
			return name, version
		case value == nil:
		case field == 1:
			name = value
		case field == 2:
			version = value
		}
		b = b[n:]
	}
	return name, version
}

// Field reads the field at the front of a message, and returns how many bytes it
// takes; negative: b is malformed. Value is nil if the field is no string, bytes
// or message.
func Field(b []byte) (field protowire.Number, value []byte, n int) {
	field, wire, tag := protowire.ConsumeTag(b)
	if tag < 0 {
		return 0, nil, tag
	}
	if wire == protowire.BytesType {
		value, n = protowire.ConsumeBytes(b[tag:])
	} else {
		n = protowire.ConsumeFieldValue(field, wire, b[tag:])
	}
	if n < 0 {
		return 0, nil, n
	}
	return field, value, tag + n
}

// Sum returns the sum of all versions: equal to the Sum of a set of resources
// if the client has exactly these. Ok is false if a version is not one of ours.
func (v Versions) Sum() (sum xds.Sum, ok bool) {
	for _, version := range v.All() {
		s, ok := ParseSum(version)
		if !ok {
			return xds.Sum{}, false
		}
		sum = sum.Add(s)
	}
	return sum, true
}

// ParseSum reads the text of a Sum.
func ParseSum(text []byte) (sum xds.Sum, ok bool) {
	if len(text) != hex.EncodedLen(len(sum)) {
		return sum, false
	}
	_, err := hex.Decode(sum[:], text)
	return sum, err == nil
}
