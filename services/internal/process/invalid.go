package process

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
)

// invalidError says why the value of a setting is invalid.
type invalidError struct {
	setting string
	reason  error
}

func (e *invalidError) Error() string { return "--" + e.setting + " " + e.reason.Error() }

func (e *invalidError) Unwrap() error { return e.reason }

// Invalid returns an error for the value of a setting. A process reports such
// errors of Settings.Check with the value and its origin.
func Invalid(setting, format string, args ...any) error {
	return &invalidError{setting, fmt.Errorf(format, args...)}
}

// Positive returns an error if the value of a setting is not greater than zero.
func Positive[T ~int | ~int64](setting string, value T) error {
	if value > 0 {
		return nil
	}
	return Invalid(setting, "want more than zero")
}

// located adds the value and its origin, such as a file and line or a variable, to
// each error in err that Invalid made.
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
