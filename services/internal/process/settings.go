package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix begins the name of each flag's variable.
const EnvPrefix = "MESHLOG_"

// settingsFlag names the settings file.
const settingsFlag = "settings"

// UsageError is an error of the caller: wrong flags, settings, arguments.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *UsageError) Unwrap() error { return e.Err }

// ApplySettings sets the flags that were not given on the command line from
// their variables and, where those are unset, from the settings file that the
// flag "settings" names. All errors are *UsageError.
func ApplySettings(flags *pflag.FlagSet, lookupEnv func(string) (string, bool)) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := lookupEnv(EnvName(f.Name))
		if f.Changed || !ok {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, fmt.Errorf("environment: %s=%q: %w", EnvName(f.Name), value, errors.Unwrap(err)))
		}
	})
	if f := flags.Lookup(settingsFlag); f != nil && f.Value.String() != "" {
		errs = append(errs, applyFile(flags, f.Value.String())...)
	}
	if len(errs) > 0 {
		return &UsageError{errors.Join(errs...)}
	}
	return nil
}

// EnvName is the variable of a flag.
func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// applyFile sets the flags that nothing else has set from a file.
func applyFile(flags *pflag.FlagSet, path string) []error {
	b, err := os.ReadFile(path)
	if err != nil {
		return []error{fmt.Errorf("settings: %w", err)}
	}
	var doc yaml.Node
	switch err := yaml.NewDecoder(bytes.NewReader(b)).Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil // nothing is set
	case err != nil:
		return []error{fmt.Errorf("settings %s: %w", path, err)}
	}
	root := doc.Content[0]
	if root.Kind != yaml.MappingNode {
		return []error{fmt.Errorf("settings %s:%d: want a map from names of flags to values", path, root.Line)}
	}
	var errs []error
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if err := applyEntry(flags, key.Value, value); err != nil {
			errs = append(errs, fmt.Errorf("settings %s:%d: %s: %w", path, key.Line, key.Value, err))
		}
	}
	return errs
}

func applyEntry(flags *pflag.FlagSet, name string, node *yaml.Node) error {
	f := flags.Lookup(name)
	if f == nil || name == settingsFlag || name == "help" {
		return errors.New("no such setting; --help lists them")
	}
	value := node.Value
	switch node.Kind {
	case yaml.ScalarNode:
	case yaml.SequenceNode:
		var items []string
		for _, item := range node.Content {
			if item.Kind != yaml.ScalarNode {
				return errors.New("want a list of plain values")
			}
			items = append(items, item.Value)
		}
		value = strings.Join(items, ",")
	default:
		return errors.New("want a plain value")
	}
	if f.Changed {
		return nil
	}
	if err := flags.Set(name, value); err != nil {
		return fmt.Errorf("%q: %w", value, errors.Unwrap(err))
	}
	return nil
}

// CheckConfig says what is wrong with the directory that --config names.
func CheckConfig(dir string) error {
	if dir == "" {
		return errors.New("--config is missing: give the directory of YAML to serve")
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("--config: %w; make the directory, it may be empty", err)
	case err != nil:
		return fmt.Errorf("--config: %w", err)
	case !info.IsDir():
		return fmt.Errorf("--config %s: not a directory", dir)
	}
	return nil
}

// CheckData says what is wrong with what --data says.
func CheckData(dir string) error {
	if dir == "" {
		return errors.New("--data is missing: give a directory; it is made where it is missing")
	}
	return nil
}
