package builder

import (
	"errors"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/services/builder/streams"
	"meshlog.dev/services/builder/webhook"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/process"
)

// Settings configure the streams that a builder creates, and what it calls.
type Settings struct {
	History time.Duration // how long the log and the versions are kept
	LogMiB  int64         // maximum size of the log; the bus reserves it
	// Of the audit.
	AuditHistory time.Duration
	AuditMiB     int64
	// Webhook is the URL to call when something is held back, quarantined or stopped;
	// empty: none is called.
	Webhook string
}

// logBytes returns the maximum size of the log. A full log refuses records.
func (s *Settings) logBytes() int64 { return s.LogMiB << 20 }

// sizes returns the sizes of the streams on this number of servers.
func (s *Settings) sizes(replicas int) streams.Sizes {
	return streams.Sizes{
		Replicas: replicas, History: s.History, LogBytes: s.logBytes(), AuditHistory: s.AuditHistory, AuditBytes: s.AuditMiB << 20,
	}
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{
		History: streams.DefaultHistory, LogMiB: streams.DefaultLogBytes >> 20,
		AuditHistory: audit.DefaultHistory, AuditMiB: audit.DefaultBytes >> 20,
	}
}

// Flags binds flags to the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.DurationVar(&s.History, "history", s.History, "`time` for which the log and the versions are kept, at least an hour. "+
		"Raise it to look back further; a longer history takes more disk on the bus and in the data directory")
	fs.Int64Var(&s.LogMiB, "log-mib", s.LogMiB, "maximum size of the log in `MiB`, which the bus reserves; a full log refuses records. "+
		"Raise it if the history needs more; lower it if the bus has less disk")
	fs.DurationVar(&s.AuditHistory, "audit-history", s.AuditHistory, "`time` for which the audit is kept, at least an hour: which process gave which key or certificate for which proxy. "+
		"Raise it if you must be able to look back further")
	fs.Int64Var(&s.AuditMiB, "audit-mib", s.AuditMiB, "maximum size of the audit in `MiB`, which the bus reserves; when it is full, the oldest records go. "+
		"Raise it if `meshlog audit` does not reach back for that time. The watchers of a shard, or all frontends, fill half of it at most")
	fs.StringVar(&s.Webhook, "webhook", s.Webhook, "`URL` that the leading builder calls (POST, JSON) when a loss is held back, a resource is put into quarantine, or publishing stops. "+
		"Set it to get word of these without looking")
}

// Check returns an error for settings that are out of range.
func (s *Settings) Check() error {
	return errors.Join(
		atLeastAnHour("history", s.History), process.Positive("log-mib", s.LogMiB),
		atLeastAnHour("audit-history", s.AuditHistory), process.Positive("audit-mib", s.AuditMiB),
		s.checkWebhook(),
	)
}

func (s *Settings) checkWebhook() error {
	if s.Webhook == "" {
		return nil
	}
	if err := webhook.Check(s.Webhook); err != nil {
		return process.Invalid("webhook", "%w", err)
	}
	return nil
}

func atLeastAnHour(setting string, d time.Duration) error {
	if d < time.Hour {
		return process.Invalid(setting, "want an hour at least")
	}
	return nil
}
