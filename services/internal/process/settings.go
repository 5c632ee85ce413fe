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
)

// EnvPrefix begins the name of each flag's variable.
const EnvPrefix = "MESHLOG_"

// What can be said on the command line but is no setting.
const (
	settingsFlag = "settings"
	checkFlag    = "check"
	helpFlag     = "help"
)

// originOf is the annotation of a flag that says where its value comes from, if
// that is not the command line.
const originOf = "meshlog_origin"

// UsageError is an error of the caller: wrong flags, settings, arguments.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong.
func (e *UsageError) Unwrap() error { return e.Err }

// ApplySettings sets the flags that were not given on the command line from
// their variables and, where those are unset, from the settings file that the
// flag "settings" names. The error is an *UsageError with all that is wrong.
func ApplySettings(flags *pflag.FlagSet, lookupEnv func(string) (string, bool)) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		value, ok := lookupEnv(EnvName(f.Name))
		if f.Changed || !ok || f.Name == helpFlag || f.Name == checkFlag {
			return
		}
		origin := fmt.Sprintf("environment: %s", EnvName(f.Name))
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

// EnvName is the variable of a flag.
func EnvName(flag string) string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// OnCommandLine says whether a flag was given on the command line, and is not
// what a variable or a file says for all commands.
func OnCommandLine(flags *pflag.FlagSet, name string) bool {
	f := flags.Lookup(name)
	return f != nil && f.Changed && len(f.Annotations[originOf]) == 0
}

// set sets a flag and notes where its value comes from.
func set(flags *pflag.FlagSet, name, value, origin string) error {
	f := flags.Lookup(name)
	before := f.Value.String()
	if err := flags.Set(name, value); err != nil {
		_ = f.Value.Set(before) // some values are zero after an error: not to be complained of, too
		err = errors.Unwrap(err)
		if errors.As(err, new(*strconv.NumError)) {
			err = fmt.Errorf("want a value of type %s", f.Value.Type())
		}
		return fmt.Errorf("%q: %w", value, err)
	}
	return flags.SetAnnotation(name, originOf, []string{origin})
}

// applyFile sets the flags that nothing else has set from a file.
func applyFile(flags *pflag.FlagSet, path string) []error {
	b, err := os.ReadFile(path)
	if err != nil {
		return []error{fmt.Errorf("settings: %w", err)}
	}
	var doc, another yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(b))
	switch err := decoder.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil // nothing is set
	case err != nil:
		return []error{fmt.Errorf("settings %s: %w", path, err)}
	}
	root := doc.Content[0]
	switch {
	case root.Kind == yaml.ScalarNode && root.Tag == "!!null":
		return nil // comments
	case root.Kind != yaml.MappingNode:
		return []error{fmt.Errorf("settings %s:%d: want a map from names of flags to values", path, root.Line)}
	}
	var errs []error
	first := map[string]int{}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		origin := fmt.Sprintf("settings %s:%d: %s", path, key.Line, key.Value)
		if line, again := first[key.Value]; again {
			errs = append(errs, fmt.Errorf("%s: is set in line %d already; remove one of them", origin, line))
			continue
		}
		first[key.Value] = key.Line
		if err := applyEntry(flags, key.Value, value, origin); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", origin, err))
		}
	}
	if err := decoder.Decode(&another); !errors.Is(err, io.EOF) {
		errs = append(errs, fmt.Errorf("settings %s: nothing is read after the line with ---; remove it", path))
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
		return errors.New("has no value: give one, or remove the line")
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

// isSetting says whether a flag may be set in a file, too.
func isSetting(f *pflag.Flag) bool {
	return f.Name != settingsFlag && f.Name != checkFlag && f.Name != helpFlag
}

// settingNames are those that a file may hold.
func settingNames(flags *pflag.FlagSet) (names []string) {
	flags.VisitAll(func(f *pflag.Flag) {
		if isSetting(f) {
			names = append(names, f.Name)
		}
	})
	return names
}

// unknownVariables are those of an environment that begin as ours do and that
// no flag has: those that look misspelt, with what they may stand for, and
// others. They are no errors: other programs' are among them, and what
// Kubernetes makes of the names of services.
func unknownVariables(flags *pflag.FlagSet, environ []string) (misspelt, others []string) {
	known := append(settingNames(flags), settingsFlag)
	for _, e := range environ {
		variable, _, _ := strings.Cut(e, "=")
		name, ours := strings.CutPrefix(variable, EnvPrefix)
		if !ours || slices.ContainsFunc(known, func(k string) bool { return EnvName(k) == variable }) {
			continue
		}
		if meant, ok := nearest(name, known); ok {
			misspelt = append(misspelt, fmt.Sprintf("%s is no setting of this process; did you mean %s?", variable, EnvName(meant)))
		} else {
			others = append(others, variable+" is no setting of this process")
		}
	}
	slices.Sort(misspelt)
	slices.Sort(others)
	return misspelt, others
}

// settingReport is what there is to say of one setting.
type settingReport struct {
	Setting string `json:"setting"`
	Value   string `json:"value"`
	// Origin is where the value comes from: the command line, a variable, a line
	// of a file, or the default.
	Origin string `json:"origin"`
}

// reportSettings says what all settings are, without passwords.
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

// Redacted is a value that may be URLs, separated by commas, without passwords
// and tokens.
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

// CheckConfig says what is wrong with the directory that --config names.
func CheckConfig(dir string) error {
	if dir == "" {
		return Invalid("config", "is missing: give the directory of YAML to serve")
	}
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Invalid("config", "%w; make the directory, it may be empty", reason(err))
	case err != nil:
		return Invalid("config", "%w", reason(err))
	case !info.IsDir():
		return Invalid("config", "not a directory")
	}
	return nil
}

// CheckData says what is wrong with what --data says.
func CheckData(dir string) error {
	if dir == "" {
		return Invalid("data", "is missing: give a directory; it is made where it is missing")
	}
	return nil
}

// VerifyData says why a data directory would be of no use, without making it:
// whether one can write where it is, or would be.
func VerifyData(dir string) error {
	if dir == "" {
		return nil // Check has said so
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
		return Invalid("data", "nothing can be written in %s: %w; give another directory, or the user of this process the right to", at, reason(err))
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// DataError is err with what to do about it, where nothing can be written in a
// data directory.
func DataError(err error) error {
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) {
		return fmt.Errorf("%w; give another directory with --data, or the user of this process the right to write there", err)
	}
	return err
}

// reason leaves out of an error of the os package what its reader knows.
func reason(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}
