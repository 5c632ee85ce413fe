package jsapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Ensure makes a stream if it is missing. It never changes an existing stream:
// the caller checks the settings that it returns. created reports whether this
// call made the stream; it is false if the server's answer was lost.
func Ensure(ctx context.Context, js jetstream.JetStream, c jetstream.StreamConfig) (info *jetstream.StreamInfo, created bool, err error) {
	s, err := js.Stream(ctx, c.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = js.CreateStream(ctx, c)
		created = err == nil
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process was faster
			s, err = js.Stream(ctx, c.Name)
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("make stream %s: %w", c.Name, err)
	}
	return s.CachedInfo(), created, nil
}

// Faults are the settings of a stream that break a promise of its user.
type Faults []error

// Must adds a fault unless the setting holds.
func (f *Faults) Must(holds bool, setting string, is, wants any, why string) {
	if !holds {
		*f = append(*f, fmt.Errorf("%s: is %v, must be %v: %s", setting, is, wants, why))
	}
}

// History adds the settings that would lose messages before their age, or admit
// messages that the clients did not write. messages names them for the reader,
// "records" for example.
func (f *Faults) History(c jetstream.StreamConfig, messages string) {
	byAge := messages + " expire by age only"
	f.Must(c.Retention == jetstream.LimitsPolicy, "retention", c.Retention, jetstream.LimitsPolicy, byAge)
	f.Must(c.MaxMsgs <= 0, "max_msgs", c.MaxMsgs, -1, byAge)
	f.Must(c.MaxMsgsPerSubject <= 0, "max_msgs_per_subject", c.MaxMsgsPerSubject, -1, byAge)
	f.Must(c.DenyDelete, "deny_delete", c.DenyDelete, true, "a delete leaves a gap between "+messages)
	f.Must(c.DenyPurge, "deny_purge", c.DenyPurge, true, byAge)
	f.Must(!c.AllowRollup, "allow_rollup_hdrs", c.AllowRollup, false, "a rollup deletes "+messages)
	f.Must(!c.AllowMsgTTL, "allow_msg_ttl", c.AllowMsgTTL, false, "a TTL leaves a gap between "+messages)
	f.Must(c.AllowDirect, "allow_direct", c.AllowDirect, true, "clients read "+messages+" by Direct Get")
	f.Must(!c.NoAck, "no_ack", c.NoAck, false, "without acknowledgements, "+messages+" get lost unnoticed")
	f.Must(c.Mirror == nil && len(c.Sources) == 0, "mirror, sources", "set", "unset", "only clients write "+messages)
	f.Must(c.SubjectTransform == nil, "subject_transform", "set", "unset", "subjects say what "+messages+" are about")
}

// Republish adds that the stream republishes: the server would copy its messages to
// any subject, another stream's too, without asking which client may publish there.
func (f *Faults) Republish(c jetstream.StreamConfig) {
	f.Must(c.RePublish == nil, "republish", "set", "unset", "no client may write to the subjects of others, and so no stream for it")
}

// Age adds a max_age below the promised one; 0 is for ever.
func (f *Faults) Age(c jetstream.StreamConfig, promised time.Duration, messages string) {
	if c.MaxAge == 0 || promised > 0 && c.MaxAge >= promised {
		return
	}
	wants := "for ever"
	if promised > 0 {
		wants = "for " + promised.String()
	}
	*f = append(*f, fmt.Errorf("max_age: %s are kept for %s, and are promised to be kept %s", messages, c.MaxAge, wants))
}

// Err returns the faults as one error, nil if there are none.
func (f Faults) Err() error { return errors.Join(f...) }
