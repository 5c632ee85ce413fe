package web

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
)

// The files of others are those that were read when they were added.
func TestAssets(t *testing.T) {
	for name, want := range map[string]string{
		"uplot-1.6.32.min.js":  "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
		"uplot-1.6.32.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
		"htmx-2.0.7.min.js":    "60231ae6ba9db3825eb15a261122d5f55921c4d53b66bf637dc18b4ee27c79f9",
		"sse-2.2.4.min.js":     "98a46496de0c3605fbffdce9167ba427bdd9553184f83f149c261891a92c0136",
	} {
		b, err := assets.ReadFile("static/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s has the SHA-256 %x, want %s", name, sum, want)
		}
	}
}
