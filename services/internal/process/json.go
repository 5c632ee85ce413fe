package process

import (
	"bytes"
	"encoding/json"
	"iter"
	"net/http"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// WriteJSON answers a request with v, which may be a protobuf message.
func WriteJSON(w http.ResponseWriter, v any) {
	b, err := marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(b, '\n')) // fails only if the client is gone
}

// WriteJSONList answers a request with a list. It encodes one item at a time, so
// that only one is in memory.
func WriteJSONList[T any](w http.ResponseWriter, items iter.Seq[T]) {
	w.Header().Set("Content-Type", "application/json")
	before := "[\n"
	for item := range items {
		b, err := marshal(item)
		if err != nil {
			// The status is already sent, so the error makes the JSON invalid.
			b = []byte("error: " + err.Error())
		}
		if _, err := w.Write(append([]byte(before), bytes.TrimSpace(b)...)); err != nil {
			return // the client is gone
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
		v = json.RawMessage(b) // MarshalIndent formats it: protojson's spaces are random
	}
	return json.MarshalIndent(v, "", "  ")
}
