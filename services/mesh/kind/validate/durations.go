package validate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
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
	if len(withDurations.Fields(of)) == 0 || !maybeDuration(spec) {
		return spec
	}
	w := durationWriter{json: json.NewDecoder(bytes.NewReader(spec)), in: spec}
	if err := w.value(of, false); err != nil {
		return spec
	}
	return append(w.out, spec[w.done:]...)
}

// maybeDuration reports whether a text of the JSON may be a duration: most objects have
// none, and need not be read twice.
func maybeDuration(spec []byte) bool {
	for i := bytes.IndexByte(spec, '"'); i >= 0; { // any quote may begin a text
		spec = spec[i+1:]
		i = bytes.IndexByte(spec, '"')
		if i > 1 && strings.IndexByte("-+.0123456789", spec[0]) >= 0 && strings.IndexByte("hms", spec[i-1]) >= 0 {
			return true
		}
	}
	return false
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
	text, isText := t.(string)
	switch {
	case isText && of != nil && of.FullName() == durationType:
		w.write(text)
	case t == json.Delim('['), t == json.Delim('{'):
		for w.json.More() {
			item, itemIsMap := of, false
			if t == json.Delim('{') {
				name, err := w.json.Token()
				if err != nil {
					return err
				}
				item, itemIsMap = member(of, isMap, name.(string))
			}
			if err := w.value(item, itemIsMap); err != nil {
				return err
			}
		}
		_, err = w.json.Token() // the end
	}
	return err
}

// member returns the type of the value under a name in a message of type of, or in
// a map of such messages.
func member(of protoreflect.MessageDescriptor, isMap bool, name string) (item protoreflect.MessageDescriptor, itemIsMap bool) {
	if of == nil || isMap {
		return of, false
	}
	fd := cmp.Or(of.Fields().ByJSONName(name), of.Fields().ByTextName(name))
	switch {
	case fd == nil:
		return nil, false
	case fd.IsMap():
		return fd.MapValue().Message(), true
	}
	return fd.Message(), false
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
