package command

import (
	"fmt"

	"meshlog.dev/services/operate/past"
)

// signs are the signs of changes, in their colors.
var signs = map[string]Cell{"added": {Text: "+", Color: Green}, "removed": {Text: "-", Color: Red}, "changed": {Text: "~", Color: Yellow}}

// ChangeTitle returns the object with the sign of its change.
func ChangeTitle(c past.ObjectChange, out *Output) string {
	sign := signs[c.Change]
	return out.Paint(sign.Text+" "+c.Object, sign.Color)
}

// ChangeLines returns the fields that differ. An object that was added or removed
// has none.
func ChangeLines(c past.ObjectChange) []string {
	if c.Unreadable != "" {
		return []string{"cannot be shown: " + c.Unreadable}
	}
	return FieldLines(c.Fields)
}

// FieldLines returns the lines of fields that differ.
func FieldLines(fields []past.FieldChange) []string {
	lines := make([]string, len(fields))
	for i, f := range fields {
		switch {
		case f.Before == nil:
			lines[i] = fmt.Sprintf("%s: %s (new)", f.Path, Brief(f.After))
		case f.After == nil:
			lines[i] = fmt.Sprintf("%s: removed, was %s", f.Path, Brief(f.Before))
		default:
			lines[i] = fmt.Sprintf("%s: %s -> %s", f.Path, Brief(f.Before), Brief(f.After))
		}
	}
	return lines
}

// maxValue is how much of a value a line shows; `-o json` shows all.
const maxValue = 100

// Brief returns the beginning of a value.
func Brief(b []byte) string {
	s := []rune(string(b))
	if len(s) <= maxValue {
		return string(s)
	}
	return string(s[:maxValue]) + "..."
}
