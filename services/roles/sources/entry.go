package sources

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
)

// entry is a watcher to run.
type entry struct {
	runnable
	user bus.ConnectOptions // files of its own user of the bus; empty: that of the process
	line int
	text string // what the file says about it
}

// list are the entries of a file, no two for one shard.
type list struct {
	entries  []entry
	warnings []string
}

// parse reads a file of sources of these types. An error has all errors of the file.
func parse(types typeTable, path string, data []byte) (list, error) {
	var file struct {
		Sources []yaml.Node `yaml:"sources"`
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	if err := decoder.Decode(&file); err != nil && !errors.Is(err, io.EOF) {
		return list{}, fmt.Errorf("%s: %w; want the key sources with a list", path, err)
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return list{}, fmt.Errorf("%s: only one document is read; remove the line with --- and what follows it", path)
	}
	var l list
	var errs []error
	for i := range file.Sources {
		node := &file.Sources[i]
		e, err := parseEntry(types, path, node)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.add(path, e, "give it another instance")
	}
	return l, errors.Join(errs...)
}

// add appends an entry, or a warning with this advice if there is one for its shard.
func (l *list) add(path string, e entry, advice string) {
	if i := slices.IndexFunc(l.entries, func(other entry) bool { return other.Shard() == e.Shard() }); i >= 0 {
		l.warnings = append(l.warnings, fmt.Sprintf("%s:%d: the source %s is there already in line %d: this entry is ignored; %s", path, e.line, e.Shard(), l.entries[i].line, advice))
		return
	}
	l.entries = append(l.entries, e)
}

// parseEntry reads one entry: its type, the settings of the watcher, and the files of its
// user of the bus.
func parseEntry(types typeTable, path string, node *yaml.Node) (entry, error) {
	where := fmt.Sprintf("%s:%d", path, node.Line)
	if node.Kind != yaml.MappingNode {
		return entry{}, fmt.Errorf("%s: want a map with a type and settings", where)
	}
	typeOf, settings := "", &yaml.Node{Kind: yaml.MappingNode, Line: node.Line}
	for i := 0; i < len(node.Content); i += 2 {
		if node.Content[i].Value == "type" {
			typeOf = node.Content[i+1].Value
			continue
		}
		settings.Content = append(settings.Content, node.Content[i], node.Content[i+1])
	}
	make, known := types[typeOf]
	switch {
	case typeOf == "":
		return entry{}, fmt.Errorf("%s: has no type: %s", where, types.known())
	case !known:
		return entry{}, fmt.Errorf("%s: there is no type %q: %s", where, typeOf, types.known())
	}
	text, err := yaml.Marshal(node)
	if err != nil {
		return entry{}, fmt.Errorf("%s: %w", where, err)
	}
	w := make()
	e := entry{runnable: w, line: node.Line, text: string(text)}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	w.Flags(fs)
	e.userFlags(fs)
	if errs := process.SetFromYAML(fs, settings, path); len(errs) > 0 {
		return entry{}, errors.Join(errs...)
	}
	if err := w.Check(); err != nil {
		return entry{}, fmt.Errorf("%s: %s", where, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return e, nil
}

// userFlags binds the files of the user of the bus that publishes for this source.
func (e *entry) userFlags(fs *pflag.FlagSet) {
	fs.StringVar(&e.user.NkeyFile, "bus-nkey", "", "")
	fs.StringVar(&e.user.CredsFile, "bus-creds", "", "")
	fs.StringVar(&e.user.TokenFile, "bus-token-file", "", "")
}

// as returns options for a connection as the user of the entry, or that of the process if
// the entry names none.
func (e *entry) as(o bus.ConnectOptions) bus.ConnectOptions {
	if u := e.user; u.NkeyFile+u.CredsFile+u.TokenFile != "" {
		o.NkeyFile, o.CredsFile, o.TokenFile = u.NkeyFile, u.CredsFile, u.TokenFile
	}
	return o
}

// known says which types there are.
func (t typeTable) known() string { return "want one of " + t.names() }

func (t typeTable) names() string { return strings.Join(slices.Sorted(maps.Keys(t)), ", ") }
