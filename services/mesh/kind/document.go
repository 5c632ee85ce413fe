package kind

import (
	"bytes"
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// Document returns a payload of the log as JSON, as its source would write it:
// the spec of an Istio kind, the whole object of other kinds. Equal payloads have
// equal documents. It is an error if this build cannot read the payload.
func Document(name, typeURL string, b []byte) (json.RawMessage, error) {
	k, ok := ByName(name)
	if !ok {
		return nil, fmt.Errorf("this build knows no kind %q", name)
	}
	m, err := k.Decode(typeURL, b)
	if err != nil {
		return nil, err
	}
	if whole, ok := m.(*registryv1.Object); ok {
		return compact(whole.GetJson())
	}
	if b, err = protojson.Marshal(m); err != nil {
		return nil, err
	}
	return compact(b) // protojson puts spaces where it likes
}

func compact(b []byte) (json.RawMessage, error) {
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
