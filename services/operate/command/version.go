package command

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// Moment is a position of the log that an argument names.
type Moment struct {
	Version  ident.Position
	Manifest *store.Manifest // nil if no version was published there
}

// Latest names the newest version.
const Latest = "latest"

// MomentForms describes VERSION in help texts.
const MomentForms = `A VERSION is written in full (1795275208.13), by its end (.13), as latest or
latest~2 (two before it), or as a time ("14:02", "10m ago", "yesterday 14:02"),
which names the version that was served then.`

var (
	latestForm   = regexp.MustCompile(`^latest(?:~(\d+))?$`)
	positionForm = regexp.MustCompile(`^(?:\d*\.)?\d+$`)
)

// FindMoment reads VERSION. A position that was never published is found if the
// log has it.
func FindMoment(ctx context.Context, p *past.Past, arg string) (Moment, error) {
	if m := latestForm.FindStringSubmatch(arg); m != nil {
		n, err := strconv.Atoi("0" + m[1])
		if err != nil {
			return Moment{}, Usage("version %q: %w", arg, err)
		}
		return beforeLatest(ctx, p, n)
	}
	if positionForm.MatchString(arg) {
		return findPosition(ctx, p, arg)
	}
	t, err := ParseWhen(arg, time.Now())
	if err != nil {
		return Moment{}, Usage("version %q: want EPOCH.SEQ, .SEQ, latest, latest~N or a time; `meshlog versions` lists them", arg)
	}
	return servedAt(ctx, p, t)
}

func beforeLatest(ctx context.Context, p *past.Past, n int) (Moment, error) {
	have := 0
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return Moment{}, err
		}
		if have == n {
			return MomentOf(m), nil
		}
		have++
	}
	if have == 0 {
		return Moment{}, noVersions(p)
	}
	return Moment{}, NotFound("version latest~%d: only %s kept; `meshlog versions -n -1` lists them", n, Plural(have, "version is", "versions are"))
}

func noVersions(p *past.Past) error {
	return NotFound("%s has no versions: nothing has been published yet", p.Name)
}

// servedAt returns the last version that was published at t or before.
func servedAt(ctx context.Context, p *past.Past, t time.Time) (Moment, error) {
	var oldest *store.Manifest
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return Moment{}, err
		}
		if oldest = m; !PublishedAt(m).After(t) {
			return MomentOf(m), nil
		}
	}
	if oldest == nil {
		return Moment{}, noVersions(p)
	}
	return Moment{}, NotFound("no version that was served at %s is kept; the oldest is %s, of %s",
		Clock(t), store.VersionOf(oldest.GetVersion()), Clock(PublishedAt(oldest)))
}

// PublishedAt returns when a version was published or, if its manifest does not
// say, the time of its last record.
func PublishedAt(m *store.Manifest) time.Time {
	if m.GetPublishTime() != nil {
		return m.GetPublishTime().AsTime()
	}
	return m.GetRecordTime().AsTime()
}

// findPosition reads EPOCH.SEQ, the end of one, or SEQ.
func findPosition(ctx context.Context, p *past.Past, arg string) (Moment, error) {
	end := arg
	if !strings.Contains(end, ".") {
		end = "." + end
	}
	var found Moment
	var names []string
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return Moment{}, err
		}
		at := MomentOf(m)
		name := at.Version.String()
		if name == arg {
			return at, nil
		}
		if strings.HasSuffix(name, end) {
			found, names = at, append(names, name)
		}
	}
	switch len(names) {
	case 0:
		return unpublished(ctx, p, arg)
	case 1:
		return found, nil
	}
	return Moment{}, Usage("version %q may be %s; write it in full", arg, strings.Join(names, " or "))
}

// unpublished finds a position of the log that was never a version.
func unpublished(ctx context.Context, p *past.Past, arg string) (Moment, error) {
	missing := NotFound("version %s: never published, or no longer kept; `meshlog versions` lists them", arg)
	v, err := ident.ParsePosition(arg)
	if err != nil {
		v.Seq, err = strconv.ParseUint(strings.TrimPrefix(arg, "."), 10, 64)
	}
	if err != nil || p.Log == nil {
		return Moment{}, missing
	}
	at, err := past.Locate(ctx, p, v.Seq)
	if err != nil {
		return Moment{}, fmt.Errorf("%w; nor can the log make it: %w", missing, err)
	}
	if v.Epoch != 0 && at != v {
		return Moment{}, fmt.Errorf("%w; the position of record %d of the log is %s", missing, v.Seq, at)
	}
	return Moment{Version: at}, nil
}

// MomentOf returns the moment of a published version.
func MomentOf(m *store.Manifest) Moment { return Moment{store.VersionOf(m.GetVersion()), m} }

// Content returns the content that was served at a moment.
func (m Moment) Content(ctx context.Context, p *past.Past) (*store.Snapshot, error) {
	at, err := past.At(ctx, p, m.Version)
	return at.Snapshot, err
}

// IsSeq reports whether s is SEQ or EPOCH.SEQ, and not a time.
func IsSeq(s string) bool { return positionForm.MatchString(s) && !strings.HasPrefix(s, ".") }

// ParseSeq reads the SEQ of the flag's value, SEQ or EPOCH.SEQ; otherwise if it
// is empty.
func ParseSeq(flag, s string, otherwise uint64) (uint64, error) {
	if s == "" {
		return otherwise, nil
	}
	if p, err := ident.ParsePosition(s); err == nil {
		return p.Seq, nil
	}
	seq, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		return 0, Usage("%s %q: want SEQ or EPOCH.SEQ, as `meshlog log` and `meshlog versions` print them", flag, s)
	}
	return seq, nil
}

// SeqAt returns the first record at the time of the flag's value, or later.
func SeqAt(ctx context.Context, log events.Reader, flag, s string) (uint64, error) {
	t, err := ParseWhen(s, time.Now())
	if err != nil {
		return 0, Usage("%s %w", flag, err)
	}
	return seqAt(ctx, log, t)
}

// SeqOrTime reads the flag's value as ParseSeq does or, if it is a time, as
// SeqAt does.
func SeqOrTime(ctx context.Context, log events.Reader, flag, s string, otherwise uint64) (uint64, error) {
	if s == "" || IsSeq(s) {
		return ParseSeq(flag, s, otherwise)
	}
	return SeqAt(ctx, log, flag, s)
}
