package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"meshlog.dev/services/nearest"
)

// envPrefix is the prefix of all variables.
const envPrefix = "MESHLOG_"

// Flags that are not settings.
const (
	settingsFlag = "settings"
	checkFlag    = "check"
	helpFlag     = "help"
)

// originOf is the annotation of a flag with the origin of its value, if that is not
// the command line.
const originOf = "meshlog_origin"

// UsageError is an error of the caller: wrong flags, settings or arguments.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *UsageError) Unwrap() error { return e.Err }

// ApplySettings sets the flags that are not on the command line from their
// variables or, if those are unset, from the settings file that the flag
// "settings" names. The error is an *UsageError with all errors.
func ApplySettings(flags *pflag.FlagSet, lookupEnv func(string) (string, bool)) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := lookupEnv(envName(f.Name))
		if f.Changed || !ok || f.Name == helpFlag || f.Name == checkFlag {
			return
		}
		origin := "environment: " + envName(f.Name)
		if err := set(flags, f.Name, value, origin); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", origin, err))
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

// envName returns the name of a flag's variable.
func envName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// OnCommandLine reports whether a flag was set on the command line, not by a
// variable or a file.
func OnCommandLine(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	return f != nil && f.Changed && len(f.Annotations[originOf]) == 0
}

// set sets a flag and records the origin of its value.
func set(flags *pflag.FlagSet, name, value, origin string) error {
	f := flags.Lookup(name)
	before := f.Value.String()
	if err := flags.Set(name, value); err != nil {
		_ = f.Value.Set(before) // some values are zero after an error, which would be reported, too
		err = errors.Unwrap(err)
		if errors.As(err, new(*strconv.NumError)) {
			err = fmt.Errorf("want a value of type %s", f.Value.Type())
		}
		return fmt.Errorf("%q: %w", value, err)
	}
	return flags.SetAnnotation(name, originOf, []string{origin})
}

// applyFile sets the flags that are not set yet from a file.
func applyFile(flags *pflag.FlagSet, path string) []error {
	b, err := os.ReadFile(path)
	if err != nil {
		return []error{fmt.Errorf("settings: %w", err)}
	}
	var doc, another yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return []error{fmt.Errorf("settings %s: %w", path, err)}
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil // the file has only comments
	}
	errs := SetFromYAML(flags, root, "settings "+path)
	if err := decoder.Decode(&another); !errors.Is(err, io.EOF) {
		errs = append(errs, fmt.Errorf("settings %s: only the first document is read; remove the line with --- and what follows it", path))
	}
	return errs
}

// SetFromYAML sets the flags that are not set yet from a map of their names to values, each
// a plain value or a list of them. where is the file in which node is, for errors and as
// the origin of the values. It returns all errors.
func SetFromYAML(flags *pflag.FlagSet, node *yaml.Node, where string) []error {
	if node.Kind != yaml.MappingNode {
		return []error{fmt.Errorf("%s:%d: want a map from names of flags to values", where, node.Line)}
	}
	var errs []error
	first := map[string]int{}
	for i := 0; i < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		origin := fmt.Sprintf("%s:%d: %s", where, key.Line, key.Value)
		if line, again := first[key.Value]; again {
			errs = append(errs, fmt.Errorf("%s: is already set in line %d; remove one of them", origin, line))
			continue
		}
		first[key.Value] = key.Line
		if err := applyEntry(flags, key.Value, value, origin); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", origin, err))
		}
	}
	return errs
}

func applyEntry(flags *pflag.FlagSet, name string, node *yaml.Node, origin string) error {
	f := flags.Lookup(name)
	if f == nil || !isSetting(f) {
		return fmt.Errorf("no such setting; %s", suggest(name, settingNames(flags), "--help lists them"))
	}
	value := node.Value
	switch {
	case node.Kind == yaml.ScalarNode && node.Tag == "!!null":
		return errors.New("has no value: set one or remove the line")
	case node.Kind == yaml.ScalarNode:
	case node.Kind == yaml.SequenceNode:
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
	return set(flags, name, value, origin)
}

// isSetting reports whether a flag can be set in a file.
func isSetting(f *pflag.Flag) bool {
	return f.Name != settingsFlag && f.Name != checkFlag && f.Name != helpFlag
}

func settingNames(flags *pflag.FlagSet) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if isSetting(f) {
			names = append(names, f.Name)
		}
	})
	return names
}

// unknownVariables returns a message for each variable in environ that has our
// prefix but belongs to no flag. misspelt has the variables that resemble a
// setting. They are not errors: other programs of meshlog have variables, and
// Kubernetes derives some from the names of services.
func unknownVariables(flags *pflag.FlagSet, environ []string) (misspelt, others []string) {
	known := append(settingNames(flags), settingsFlag)
	for _, e := range environ {
		variable, _, _ := strings.Cut(e, "=")
		name, ours := strings.CutPrefix(variable, envPrefix)
		if !ours || slices.ContainsFunc(known, func(k string) bool { return envName(k) == variable }) {
			continue
		}
		if meant, ok := nearest.Name(name, known); ok {
			misspelt = append(misspelt, fmt.Sprintf("%s is not a setting of this process; did you mean %s?", variable, envName(meant)))
		} else {
			others = append(others, variable+" is not a setting of this process")
		}
	}
	slices.Sort(misspelt)
	slices.Sort(others)
	return misspelt, others
}

// settingReport describes a setting for /debug/settings.
type settingReport struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
	Origin  string `json:"origin"` // the flag, a variable, a line of a file, or "default"
}

// reportSettings describes all settings, without passwords.
func reportSettings(flags *pflag.FlagSet) (all []settingReport) {
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Name == checkFlag || f.Name == helpFlag {
			return
		}
		r := settingReport{Setting: f.Name, Value: Redacted(f.Value.String()), Origin: "default"}
		switch origin := f.Annotations[originOf]; {
		case len(origin) > 0:
			r.Origin = origin[0]
		case f.Changed:
			r.Origin = "--" + f.Name
		}
		all = append(all, r)
	})
	return all
}

// Redacted replaces the passwords and tokens in a value that may be a
// comma-separated list of URLs.
func Redacted(value string) string {
	parts := strings.Split(value, ",")
	for i, p := range parts {
		u, err := url.Parse(strings.TrimSpace(p))
		if err != nil || u.User == nil {
			continue
		}
		u.User = url.User("xxxxx")
		parts[i] = u.String()
	}
	return strings.Join(parts, ",")
}

// CheckConfig checks the directory that --config names.
func CheckConfig(dir string) error {
	if dir == "" {
		return Invalid("config", "is missing: give the directory of YAML to serve")
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Invalid("config", "%w; create the directory, it may be empty", reason(err))
	case err != nil:
		return Invalid("config", "%w", reason(err))
	case !info.IsDir():
		return Invalid("config", "not a directory")
	}
	return nil
}

// minSecretKey is the minimum length of the key in --secret-key-file, in bytes.
const minSecretKey = 16

// ReadSecretKey returns the key of the HMACs in the file of --secret-key-file: its content
// without the whitespace around it.
func ReadSecretKey(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, Invalid("secret-key-file", "%w", err)
	}
	key := bytes.TrimSpace(b)
	if len(key) < minSecretKey {
		return nil, Invalid("secret-key-file", "has %d bytes, want at least %d; create one with: openssl rand -base64 32", len(key), minSecretKey)
	}
	return key, nil
}

// CheckData checks that --data is set.
func CheckData(dir string) error {
	if dir == "" {
		return Invalid("data", "is missing: give a directory; the process creates it if necessary")
	}
	return nil
}

// VersionsFile returns the file with the versions of a role, "builder", "frontend" or
// "console", in a data directory.
func VersionsFile(data, role string) string { return filepath.Join(data, role, "versions.db") }

// LogFile returns the file with the console's copy of the log, in a data directory.
func LogFile(data string) string { return filepath.Join(data, "console", "log.db") }

// RecordsFile returns the file with what the console records, in a data directory.
func RecordsFile(data string) string { return filepath.Join(data, "console", "records.db") }

// KeysDir returns the directory with the sealed private keys of a frontend, in a data
// directory.
func KeysDir(data string) string { return filepath.Join(data, "keys") }

// VerifyData checks that the process can write to a data directory or create it,
// without creating it.
func VerifyData(dir string) error {
	if dir == "" {
		return nil // CheckData reports it
	}
	at := dir
	for {
		info, err := os.Stat(at)
		if err == nil && !info.IsDir() {
			return Invalid("data", "%s is not a directory", at)
		}
		if err == nil {
			break
		}
		up := filepath.Dir(at)
		if !errors.Is(err, fs.ErrNotExist) || up == at {
			return Invalid("data", "%w", err)
		}
		at = up
	}
	f, err := os.CreateTemp(at, ".meshlog-check-*")
	if err != nil {
		return Invalid("data", "cannot write in %s: %w; give another directory, or let the user of this process write there", at, reason(err))
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// DataError adds advice to the error of a process that cannot write to its data
// directory.
func DataError(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w; give another directory with --data, or let the user of this process write there", err)
	}
	return err
}

// reason removes the operation and the path from an error of package os.
func reason(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
