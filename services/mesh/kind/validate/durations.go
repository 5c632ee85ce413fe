package validate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
)

const durationType = "google.protobuf.Duration"

// durations rewrites the durations in the JSON of a message as protobuf has
// them, in seconds: Istio's users write "5m" and "250ms" as well. No line
// moves. What is no duration stays for protobuf to refuse.
func Durations(spec []byte, of protoreflect.MessageDescriptor) []byte {
	w := durationWriter{json: json.NewDecoder(bytes.NewReader(spec)), in: spec}
	if err := w.value(of, false); err != nil {
		return spec
	}
	return append(w.out, spec[w.done:]...)
}

type durationWriter struct {
	json *json.Decoder
	in   []byte
	done int // bytes of in that are in out
	out  []byte
}

// value goes through the next value: of a message type, or nil for what holds
// no messages; or through a map of those.
func (w *durationWriter) value(of protoreflect.MessageDescriptor, isMap bool) error {
	t, err := w.json.Token()
	if err != nil {
		return err
	}
	switch t := t.(type) {
	case string:
		if of != nil && of.FullName() == durationType {
			w.write(t)
		}
		return nil
	case json.Delim:
		for w.json.More() {
			if t == '[' {
				err = w.value(of, false)
			} else {
				err = w.field(of, isMap)
			}
			if err != nil {
				return err
			}
		}
		_, err = w.json.Token() // the end
	}
	return err
}

// field goes through a name and its value.
func (w *durationWriter) field(of protoreflect.MessageDescriptor, isMap bool) error {
	t, err := w.json.Token()
	if err != nil {
		return err
	}
	name, _ := t.(string)
	if isMap {
		return w.value(of, false)
	}
	fd := fieldByName(of, name)
	switch {
	case fd == nil:
		return w.value(nil, false)
	case fd.IsMap():
		return w.value(fd.MapValue().Message(), true)
	}
	return w.value(fd.Message(), false)
}

func fieldByName(of protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if of == nil {
		return nil
	}
	if fd := of.Fields().ByJSONName(name); fd != nil {
		return fd
	}
	return of.Fields().ByTextName(name)
}

// write puts the text that was just read in the form of protobuf.
func (w *durationWriter) write(text string) {
	d, err := time.ParseDuration(text)
	end := int(w.json.InputOffset())
	start := end - len(text) - len(`""`)
	if err != nil || start < w.done || string(w.in[start:end]) != `"`+text+`"` {
		return
	}
	sign := ""
	if d < 0 {
		sign, d = "-", -d
	}
	w.out = append(w.out, w.in[w.done:start]...)
	w.out = fmt.Appendf(w.out, `"%s%d.%09ds"`, sign, d/time.Second, d%time.Second)
	w.done = end
}
