package process

import "strings"

// suggest says which of the known names was meant; else is said where none is
// near.
func suggest(name string, known []string, otherwise string) string {
	if meant, ok := nearest(name, known); ok {
		return "did you mean " + meant + "?"
	}
	return otherwise
}

// Nearest is the known name that a name was most likely meant to be; false where
// none is near.
func Nearest(name string, known []string) (string, bool) { return nearest(name, known) }

// nearest is the known name that name is most likely a misspelling of: the one
// of which the least share is wrong.
func nearest(name string, known []string) (best string, ok bool) {
	least := 1.
	for _, k := range known {
		if wrong := float64(distance(plain(name), plain(k))) / float64(len(plain(k))); wrong < least {
			best, least = k, wrong
		}
	}
	// A third is a guess that helps more often than it misleads.
	return best, 3*least <= 1
}

// plain leaves out what spellings of one name differ in: bus_ca, BusCA, bus-ca.
func plain(name string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "", ".", "").Replace(name))
}

// distance is how many letters have to be put in, taken out, replaced or
// swapped with their neighbour to make b of a.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			other := 1
			if a[i-1] == b[j-1] {
				other = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+other)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
