package store_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
)

// The manifest in the README is a real one.
func TestREADME(t *testing.T) {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(exampleManifest())
	if err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	if err := json.Indent(&want, b, "", "  "); err != nil { // protojson's own spaces are random
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), want.String()) {
		t.Errorf("README.md must show this manifest:\n%s", want.String())
	}
}
