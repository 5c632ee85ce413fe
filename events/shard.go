package events

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"meshlog.dev/proto/ident"
)

// ShardOf returns the shard to which a subject belongs, also one on which no event
// can be; the zero Shard for the subjects of builders and operators. What cannot
// be printed becomes U+FFFD.
func ShardOf(s Subject) ident.Shard {
	source, rest, _ := strings.Cut(string(s), ".")
	instance, _, _ := strings.Cut(rest, ".")
	if strings.HasPrefix(source, "_") {
		return ident.Shard{}
	}
	return ident.Shard{Source: untoken(source), Instance: untoken(instance)}
}

// untoken reverses Token. A text that is no token stays as it is.
func untoken(token string) string {
	if token == "=" {
		return ""
	}
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		if token[i] == '=' && i+2 < len(token) {
			high, low := strings.IndexByte(upperHex, token[i+1]), strings.IndexByte(upperHex, token[i+2])
			if high >= 0 && low >= 0 {
				b.WriteByte(byte(high<<4 | low))
				i += 2
				continue
			}
		}
		b.WriteByte(token[i])
	}
	return Printable(b.String())
}

// Printable returns a text with U+FFFD for what cannot be printed. A client may
// publish under a subject of any bytes. Archives, reports and metrics hold text, a
// terminal obeys control characters, and no event belongs under such a subject.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, s)
}
