package process

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// invalidError says what is wrong with the value of a setting.
type invalidError struct {
	setting string
	reason  error
}

// Error names the flag; where the value comes from is added to it when it is
// known.
func (e *invalidError) Error() string { return "--" + e.setting + " " + e.reason.Error() }

func (e *invalidError) Unwrap() error { return e.reason }

// Invalid is the error of a setting whose value is not good: for Settings.Check,
// of which all errors are told with the value and with where it was set.
func Invalid(setting, format string, args ...any) error {
	return &invalidError{setting, fmt.Errorf(format, args...)}
}

// Positive is the error of a setting that has to be greater than zero.
func Positive[T ~int | ~int64](setting string, value T) error {
	if value > 0 {
		return nil
	}
	return Invalid(setting, "want more than zero")
}

// located adds to each error of a setting in err its value, and the file and
// line or the variable that it comes from.
func located(err error, flags *pflag.FlagSet) error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range joined.Unwrap() {
			errs = append(errs, located(e, flags))
		}
		return errors.Join(errs...)
	}
	var bad *invalidError
	if !errors.As(err, &bad) {
		return err
	}
	f := flags.Lookup(bad.setting)
	if f == nil {
		return err
	}
	value := f.Value.String()
	switch origin := f.Annotations[originOf]; {
	case len(origin) > 0 && value != "":
		return fmt.Errorf("%s: %q: %w", origin[0], value, bad.reason)
	case len(origin) > 0:
		return fmt.Errorf("%s: %w", origin[0], bad.reason)
	case value != "":
		return fmt.Errorf("--%s %s: %w", bad.setting, value, bad.reason)
	}
	return bad
}
