package process

import "meshlog.dev/services/nearest"

// suggest asks whether the nearest known name was meant; if no name is near, it
// returns otherwise.
func suggest(name string, known []string, otherwise string) string {
	if meant, ok := nearest.Name(name, known); ok {
		return "did you mean " + meant + "?"
	}
	return otherwise
}
