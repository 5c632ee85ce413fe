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
	LogMiB  int64         // how large the log may grow; the bus reserves that
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{History: streams.DefaultHistory, LogMiB: streams.DefaultLogBytes >> 20}
}

// Flags binds flags to the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.DurationVar(&s.History, "history", s.History, "`time` for which the log and the versions are kept, an hour at least. "+
		"More lets you look back further; it takes disk on the bus and in the data directory")
	fs.Int64Var(&s.LogMiB, "log-mib", s.LogMiB, "`MiB` that the log may grow to, which the bus sets aside; it takes nothing more when that is full. "+
		"Give more where a history of that length needs more, less where the bus has not as much disk")
}

// Check returns an error for settings that are out of range.
func (s *Settings) Check() error {
	var history error
	if s.History < time.Hour {
		history = process.Invalid("history", "want an hour at least")
	}
	return errors.Join(history, process.Positive("log-mib", s.LogMiB))
}
