// Package nearest finds the known name that a misspelt one most likely means.
package nearest

import "strings"

// Name returns the known name that name most likely misspells: the one with the
// smallest share of wrong letters. ok is false if no name is near.
func Name(name string, known []string) (best string, ok bool) {
	least := 1.
	for _, k := range known {
		if wrong := float64(distance(plain(name), plain(k))) / float64(len(plain(k))); wrong < least {
			best, least = k, wrong
		}
	}
	return best, 3*least <= 1 // up to a third of wrong letters
}

// plain makes different spellings of a name equal: bus_ca, BusCA, bus-ca.
func plain(name string) string {
	return strings.ToLower(strings.NewReplacer("-", "", "_", "", ".", "").Replace(name))
}

// distance returns the number of insertions, deletions, replacements and swaps of
// neighbours that turn a into b.
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
