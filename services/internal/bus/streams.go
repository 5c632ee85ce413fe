package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/jsapi"
)

// StreamConfig are the settings of a stream. It is an alias, so that packages that
// only pass it on do not import the client library.
type StreamConfig = jetstream.StreamConfig

// NoRoom reports whether a stream was not made because the servers, or the account, have no
// room for it.
func NoRoom(err error) bool {
	switch jsapi.Code(err) {
	case jsapi.AccountResourcesExceeded, jsapi.InsufficientResources, jsapi.StorageResourcesExceeded:
		return true
	}
	return false
}

// StreamState compares a stream with the settings that it should have.
type StreamState struct {
	Name        string       `json:"name"`
	Missing     bool         `json:"missing,omitempty"`
	Differences []Difference `json:"differences,omitempty"`

	// Is are the settings of the stream; zero if it is missing.
	Is    StreamConfig `json:"-"`
	wants StreamConfig
}

// Difference is a setting of a stream that should have another value, by its name
// in `nats stream info`.
type Difference struct {
	Setting string `json:"setting"`
	Is      string `json:"is"`
	Wants   string `json:"wants"`
}

// CompareStreams compares streams with wanted settings. It changes nothing.
func CompareStreams(ctx context.Context, nc *Conn, wanted ...StreamConfig) ([]StreamState, error) {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(callTimeout))
	if err != nil {
		return nil, fmt.Errorf("look at streams: %w", err)
	}
	var all []StreamState
	for _, w := range wanted {
		s, err := js.Stream(ctx, w.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			all = append(all, StreamState{Name: w.Name, Missing: true, wants: w})
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", w.Name, jsapi.Explain(nc, err, jsapi.StreamInfo+w.Name))
		}
		state := StreamState{Name: w.Name, Is: s.CachedInfo().Config, wants: w}
		if state.Differences, err = differences(state.Is, w); err != nil {
			return nil, fmt.Errorf("stream %s: %w", w.Name, err)
		}
		all = append(all, state)
	}
	return all, nil
}

// free are the settings that operators may choose.
var free = []string{"name", "description", "metadata", "placement", "first_seq", "consumer_limits", "compression", "mirror_direct"}

// differences returns the settings that differ, by their names in JSON.
func differences(is, wants jetstream.StreamConfig) ([]Difference, error) {
	a, err := settings(is)
	if err != nil {
		return nil, err
	}
	b, err := settings(wants)
	if err != nil {
		return nil, err
	}
	names := maps.Clone(a)
	maps.Copy(names, b)
	var found []Difference
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !slices.Contains(free, name) && !reflect.DeepEqual(a[name], b[name]) {
			found = append(found, Difference{name, shown(a[name]), shown(b[name])})
		}
	}
	return found, nil
}

// settings returns the settings that are set; 0 and -1 are not.
func settings(c jetstream.StreamConfig) (map[string]any, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	var all map[string]any
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	maps.DeleteFunc(all, func(_ string, v any) bool {
		return v == nil || v == false || v == "" || v == 0.0 || v == -1.0 || reflect.DeepEqual(v, []any{})
	})
	// Durations as users write them.
	for name, d := range map[string]fmt.Stringer{"max_age": c.MaxAge, "duplicate_window": c.Duplicates, "subject_delete_marker_ttl": c.SubjectDeleteMarkerTTL} {
		if _, set := all[name]; set {
			all[name] = d.String()
		}
	}
	return all, nil
}

func shown(v any) string {
	switch v := v.(type) {
	case nil:
		return "unset"
	case string:
		return v
	case float64:
		return fmt.Sprintf("%.0f", v)
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}

// Apply changes the stream to the settings that it should have, and keeps the ones
// that operators may choose. Call it only on the order of a user: a shorter age
// drops older messages.
func (s StreamState) Apply(ctx context.Context, nc *Conn) error {
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(callTimeout))
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.Name, err)
	}
	c := s.wants
	c.Description, c.Metadata, c.Placement = s.Is.Description, s.Is.Metadata, s.Is.Placement
	c.FirstSeq, c.ConsumerLimits, c.Compression, c.MirrorDirect = s.Is.FirstSeq, s.Is.ConsumerLimits, s.Is.Compression, s.Is.MirrorDirect
	_, err = js.UpdateStream(ctx, c)
	if err == nil {
		return nil
	}
	err = jsapi.Explain(nc, err, jsapi.StreamUpdate+s.Name)
	if errors.As(err, new(*jsapi.DeniedError)) {
		err = fmt.Errorf("%w; only the administrator changes streams: give its key, --bus-nkey DIR/%s", err, Admin().KeyName())
	}
	return fmt.Errorf("stream %s: %w", s.Name, err)
}
