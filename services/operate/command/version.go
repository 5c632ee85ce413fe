package command

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"sort"
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
	seen := 0
	m, err := FindVersion(ctx, p.Versions, func(Moment) bool {
		seen++
		return seen > n
	})
	switch {
	case err != nil || m.Manifest != nil:
		return m, err
	case seen == 0:
		return m, noVersions(p)
	}
	return m, NotFound("version latest~%d: only %s kept; `meshlog versions -n -1` lists them",
		n, Plural(seen, "version is", "versions are"))
}

func noVersions(p *past.Past) error {
	return NotFound("%s has no versions: nothing has been published yet", p.Name)
}

// servedAt returns the last version that was published at t or before.
func servedAt(ctx context.Context, p *past.Past, t time.Time) (Moment, error) {
	var oldest Moment
	m, err := FindVersion(ctx, p.Versions, func(m Moment) bool {
		oldest = m
		return !PublishedAt(m.Manifest).After(t)
	})
	switch {
	case err != nil || m.Manifest != nil:
		return m, err
	case oldest.Manifest == nil:
		return m, noVersions(p)
	}
	return m, NotFound("no version that was served at %s is kept; the oldest is %s, of %s",
		Clock(t), oldest.Version, Clock(PublishedAt(oldest.Manifest)))
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
	exact, err := FindVersion(ctx, p.Versions, func(m Moment) bool {
		name := m.Version.String()
		if strings.HasSuffix(name, end) {
			found, names = m, append(names, name)
		}
		return name == arg
	})
	switch {
	case err != nil || exact.Manifest != nil:
		return exact, err
	case len(names) == 0:
		return unpublished(ctx, p, arg)
	case len(names) == 1:
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

// FindVersion returns the newest published version that is wanted; the zero Moment
// if none is.
func FindVersion(ctx context.Context, versions past.Versions, wanted func(Moment) bool) (Moment, error) {
	for m, err := range versions.History(ctx) {
		if err != nil {
			return Moment{}, err
		}
		if at := (Moment{store.VersionOf(m.GetVersion()), m}); wanted(at) {
			return at, nil
		}
	}
	return Moment{}, nil
}

// Head returns the newest published version; the zero Moment if there is none.
func Head(ctx context.Context, versions past.Versions) (Moment, error) {
	return FindVersion(ctx, versions, func(Moment) bool { return true })
}

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

// SeqAt returns the first record that the server took at the time of the flag's
// value or later; without one, the number after the last record.
func SeqAt(ctx context.Context, log events.Reader, flag, s string) (uint64, error) {
	t, err := ParseWhen(s, time.Now())
	if err != nil {
		return 0, Usage("%s %w", flag, err)
	}
	b, err := log.Bounds(ctx)
	if err != nil {
		return 0, err
	}
	n := sort.Search(int(b.Last+1-b.First), func(i int) bool {
		if err != nil {
			return true
		}
		var r events.Record
		r, err = log.Get(ctx, b.First+uint64(i))
		return err != nil || !r.Time.Before(t)
	})
	return b.First + uint64(n), err
}

// SeqOrTime reads the flag's value as ParseSeq does or, if it is a time, as
// SeqAt does.
func SeqOrTime(ctx context.Context, log events.Reader, flag, s string, otherwise uint64) (uint64, error) {
	if s == "" || IsSeq(s) {
		return ParseSeq(flag, s, otherwise)
	}
	return SeqAt(ctx, log, flag, s)
}

// whenForms lists the forms that ParseWhen takes.
const whenForms = `want "14:02", "yesterday 14:02", "10m ago", "2026-11-21 14:02" or RFC 3339`

var dateForms = []string{
	time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02",
}

// ParseWhen reads a time in the zone of now. A time of the day means its last
// occurrence before now.
func ParseWhen(s string, now time.Time) (time.Time, error) {
	s = strings.Join(strings.Fields(strings.ToLower(s)), " ")
	if s == "now" {
		return now, nil
	}
	if span, ok := strings.CutSuffix(s, "ago"); ok {
		if d, err := parseSpan(strings.TrimSpace(span)); err == nil {
			return now.Add(-d), nil
		}
	}
	today, yesterday := now.Format(time.DateOnly), now.AddDate(0, 0, -1).Format(time.DateOnly)
	dated := strings.NewReplacer("yesterday", yesterday, "today", today).Replace(s)
	for _, date := range []string{dated, today + " " + s, yesterday + " " + s} {
		t, ok := parseDate(date, now.Location())
		if ok && (date == dated || !t.After(now)) {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time: %s", s, whenForms)
}

func parseDate(s string, zone *time.Location) (time.Time, bool) {
	for _, form := range dateForms {
		if t, err := time.ParseInLocation(form, strings.ToUpper(s), zone); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

// parseSpan is time.ParseDuration with days: 2d, 1d12h.
func parseSpan(s string) (time.Duration, error) {
	var days uint64
	if n, rest, ok := strings.Cut(s, "d"); ok {
		var err error
		if days, err = strconv.ParseUint(n, 10, 32); err != nil {
			return 0, err
		}
		s = cmp.Or(rest, "0s")
	}
	d, err := time.ParseDuration(s)
	if err == nil && d < 0 {
		err = fmt.Errorf("span %q", s)
	}
	return time.Duration(days)*24*time.Hour + d, err
}
