package process

import (
	"bytes"
	"encoding/json"
	"iter"
	"net/http"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// WriteJSON answers with v, which may be a message.
func WriteJSON(w http.ResponseWriter, v any) {
	b, err := marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '\n')) // whoever asked is gone
}

// WriteJSONList answers with a list, one item after the other: no more than one
// is in memory at a time.
func WriteJSONList[T any](w http.ResponseWriter, items iter.Seq[T]) {
	w.Header().Set("Content-Type", "application/json")
	before := "[\n"
	for item := range items {
		b, err := marshal(item)
		if err != nil {
			// The answer has begun: it ends as no JSON does.
			b = []byte("error: " + err.Error())
		}
		if _, err := w.Write(append([]byte(before), bytes.TrimSpace(b)...)); err != nil {
			return // whoever asked is gone
		}
		before = ",\n"
	}
	if before == "[\n" {
		_, _ = w.Write([]byte("["))
	}
	_, _ = w.Write([]byte("\n]\n"))
}

func marshal(v any) ([]byte, error) {
	if m, ok := v.(proto.Message); ok {
		b, err := protojson.Marshal(m)
		if err != nil {
			return nil, err
		}
		v = json.RawMessage(b) // protojson's own spaces are random
	}
	return json.MarshalIndent(v, "", "  ")
}
