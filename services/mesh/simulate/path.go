package simulate

import (
	"fmt"
	"strconv"
	"strings"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
)

// normalize rewrites a path as a manager does before it looks for policies and routes;
// false: it answers the request with 400.
func normalize(m *hcmv3.HttpConnectionManager, pathAndQuery string) (string, bool) {
	if strings.Contains(pathAndQuery, "#") {
		return "", false // Envoy refuses a fragment
	}
	path, query, found := strings.Cut(pathAndQuery, "?")
	if found {
		query = "?" + query
	}
	if m.GetPathWithEscapedSlashesAction() == hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD {
		path = strings.NewReplacer("%2f", "/", "%2F", "/", "%5c", `\`, "%5C", `\`).Replace(path)
	}
	if m.GetNormalizePath().GetValue() {
		if !strings.HasPrefix(path, "/") {
			return path, path == "*" // OPTIONS *
		}
		var ok bool
		if path, ok = unescape(path); !ok {
			return "", false
		}
		path = resolve(path)
	}
	if m.GetMergeSlashes() {
		for strings.Contains(path, "//") {
			path = strings.ReplaceAll(path, "//", "/")
		}
	}
	return path + query, true
}

// unescape decodes the escapes of characters that need none, escapes those that need one,
// and turns backslashes into slashes. %00 is refused.
func unescape(path string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		ch := path[i]
		if ch == '\\' {
			ch = '/'
		}
		if ch == '%' && i+2 < len(path) {
			if n, err := strconv.ParseUint(path[i+1:i+3], 16, 8); err == nil {
				if n == 0 {
					return "", false
				}
				if plain := byte(n); unreserved(plain) {
					b.WriteByte(plain)
				} else {
					b.WriteString(path[i : i+3])
				}
				i += 2
				continue
			}
		}
		if ch <= ' ' || ch >= 0x7f || strings.IndexByte("\"<>^`{|}", ch) >= 0 {
			fmt.Fprintf(&b, "%%%02X", ch)
			continue
		}
		b.WriteByte(ch)
	}
	return b.String(), true
}

func unreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("-._~", c) >= 0
}

// resolve removes the segments . and .. of a path. Empty segments stay.
func resolve(path string) string {
	segments := strings.Split(path[1:], "/")
	var kept []string
	for i, s := range segments {
		last := i == len(segments)-1
		switch s {
		case ".":
			if last {
				kept = append(kept, "")
			}
		case "..":
			kept = kept[:max(0, len(kept)-1)]
			if last {
				kept = append(kept, "")
			}
		default:
			kept = append(kept, s)
		}
	}
	return "/" + strings.Join(kept, "/")
}
