package watcher

import (
	"github.com/spf13/pflag"

	"meshlog.dev/services/internal/process"
)

// Settings are the settings that all watchers have.
type Settings struct {
	LogShare int // percent of the log that the records of a source may take
}

// DefaultSettings returns the defaults. A builder reports a source that takes half
// of the log, before its own watcher stops.
func DefaultSettings() Settings { return Settings{LogShare: 60} }

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.IntVar(&s.LogShare, "log-share", s.LogShare, "`percent` of the log (the builders' --log-mib) that the records of a source may take. Above it, the watcher keeps changes until there is room, so that one source cannot fill the log for all. "+
		"Lower it if many sources share the log; raise it for a source that needs nearly all of it")
}

// Check returns an error for settings that are out of range.
func (s *Settings) Check() error {
	if s.LogShare < 1 || s.LogShare > 100 {
		return process.Invalid("log-share", "want 1 to 100")
	}
	return nil
}
