package validate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"meshlog.dev/services/mesh/protosearch"
)

const durationType = "google.protobuf.Duration"

var withDurations = protosearch.For(func(d protoreflect.MessageDescriptor) bool { return d.FullName() == durationType })

// Durations rewrites the durations in the JSON of a message in seconds, the only
// form that protobuf reads: users of Istio write "5m" and "250ms" too. It moves no
// line, and leaves other values for protobuf to refuse.
func Durations(spec []byte, of protoreflect.MessageDescriptor) []byte {
	if len(withDurations.Fields(of)) == 0 {
		return spec
	}
	w := durationWriter{json: json.NewDecoder(bytes.NewReader(spec)), in: spec}
	if err := w.value(of, false); err != nil {
		return spec
	}
	return append(w.out, spec[w.done:]...)
}

type durationWriter struct {
	json *json.Decoder
	in   []byte
	done int // bytes of in that out holds
	out  []byte
}

// value reads the next value, of the message type of, or a map of such values. of
// is nil for a value that holds no messages.
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

// field reads a name and its value.
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

// write replaces the text that was just read by its form in protobuf.
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
