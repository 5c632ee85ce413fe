package bootstrap

import (
	"bytes"
	"encoding/json"
)

// compact removes the spaces of JSON.
func compact(text []byte) ([]byte, error) {
	var b bytes.Buffer
	if err := json.Compact(&b, text); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
