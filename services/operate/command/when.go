package command

import (
	"context"
	"fmt"
	"regexp"
	"sort"
	"strings"
	"time"

	"meshlog.dev/events"
)

// whenForms lists the forms that ParseWhen takes.
const whenForms = `want "14:02", "yesterday 14:02", "10m ago", "2026-11-21 14:02" or RFC 3339`

var (
	agoForm   = regexp.MustCompile(`^(\S+?)\s*ago$`)
	clockForm = regexp.MustCompile(`^\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?$`)
	dateForms = []string{time.RFC3339, "2006-01-02 15:04:05Z07:00", "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"}
)

// ParseWhen reads a time in the zone of now. A time of the day means its last
// occurrence before now.
func ParseWhen(s string, now time.Time) (time.Time, error) {
	s = strings.Join(strings.Fields(strings.ToLower(s)), " ")
	day, clock, _ := strings.Cut(s, " ")
	switch m := agoForm.FindStringSubmatch(s); {
	case s == "now":
		return now, nil
	case m != nil:
		if d, err := parseSpan(m[1]); err == nil {
			return now.Add(-d), nil
		}
	case clockForm.MatchString(s):
		t, err := onDay(now, s)
		if err == nil && t.After(now) {
			t, err = onDay(now.AddDate(0, 0, -1), s)
		}
		if err == nil {
			return t, nil
		}
	case day == "today" || day == "yesterday":
		date := now
		if day == "yesterday" {
			date = now.AddDate(0, 0, -1)
		}
		if clock == "" {
			clock = "00:00"
		}
		if t, err := onDay(date, clock); err == nil {
			return t, nil
		}
	default:
		for _, form := range dateForms {
			if t, err := time.ParseInLocation(form, strings.ToUpper(s), now.Location()); err == nil {
				return t, nil
			}
		}
	}
	return time.Time{}, fmt.Errorf("%q is no time: %s", s, whenForms)
}

// parseSpan is time.ParseDuration with days: 2d, 1d12h.
func parseSpan(s string) (time.Duration, error) {
	var days time.Duration
	if n, rest, ok := strings.Cut(s, "d"); ok {
		if _, err := fmt.Sscanf(n, "%d", &days); err != nil || strings.Trim(n, "0123456789") != "" {
			return 0, fmt.Errorf("span %q", s)
		}
		if days, s = days*24*time.Hour, rest; s == "" {
			return days, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err == nil && d < 0 {
		err = fmt.Errorf("span %q", s)
	}
	return days + d, err
}

// onDay returns a time of the day on the day of date.
func onDay(date time.Time, clock string) (time.Time, error) {
	form := "15:04"
	if strings.Count(clock, ":") == 2 {
		form = "15:04:05"
	}
	t, err := time.Parse(form, clock)
	if err != nil {
		return time.Time{}, err
	}
	y, m, d := date.Date()
	return time.Date(y, m, d, t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), date.Location()), nil
}

// seqAt returns the first record that the server took at t or later; without
// one, the number after the last record.
func seqAt(ctx context.Context, log events.Reader, t time.Time) (uint64, error) {
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
