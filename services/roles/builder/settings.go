package builder

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/services/builder/streams"
	"meshlog.dev/services/internal/process"
)

// Settings configure the streams that a builder creates.
type Settings struct {
	History time.Duration // how long the log and the versions are kept
	LogMiB  int64         // maximum size of the log; the bus reserves it
}

// logBytes returns the maximum size of the log. A full log refuses records.
func (s *Settings) logBytes() int64 { return s.LogMiB << 20 }

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{History: streams.DefaultHistory, LogMiB: streams.DefaultLogBytes >> 20}
}

// Flags binds flags to the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.DurationVar(&s.History, "history", s.History, "`time` for which the log and the versions are kept, at least an hour. "+
		"Raise it to look back further; a longer history takes more disk on the bus and in the data directory")
	fs.Int64Var(&s.LogMiB, "log-mib", s.LogMiB, "maximum size of the log in `MiB`, which the bus reserves; a full log refuses records. "+
		"Raise it if the history needs more; lower it if the bus has less disk")
}

// Check returns an error for settings that are out of range.
func (s *Settings) Check() error {
	var history error
	if s.History < time.Hour {
		history = process.Invalid("history", "want an hour at least")
	}
	return errors.Join(history, process.Positive("log-mib", s.LogMiB))
}
