package command

import (
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
)

func TestParseWhen(t *testing.T) {
	zone := time.FixedZone("here", 2*60*60)
	now := time.Date(2026, 11, 21, 15, 4, 5, 0, zone)
	for s, want := range map[string]time.Time{
		"now":                       now,
		"14:02":                     time.Date(2026, 11, 21, 14, 2, 0, 0, zone),
		"9:30":                      time.Date(2026, 11, 21, 9, 30, 0, 0, zone),
		"14:02:03":                  time.Date(2026, 11, 21, 14, 2, 3, 0, zone),
		"14:02:03.5":                time.Date(2026, 11, 21, 14, 2, 3, 500_000_000, zone),
		"15:04:05":                  now,
		"15:04:06":                  time.Date(2026, 11, 20, 15, 4, 6, 0, zone), // the most recent time with this clock reading
		"23:59":                     time.Date(2026, 11, 20, 23, 59, 0, 0, zone),
		"today":                     time.Date(2026, 11, 21, 0, 0, 0, 0, zone),
		"today 14:02":               time.Date(2026, 11, 21, 14, 2, 0, 0, zone),
		"Yesterday  14:02":          time.Date(2026, 11, 20, 14, 2, 0, 0, zone),
		"yesterday":                 time.Date(2026, 11, 20, 0, 0, 0, 0, zone),
		"10m ago":                   now.Add(-10 * time.Minute),
		"1h30m ago":                 now.Add(-90 * time.Minute),
		"2d ago":                    now.Add(-48 * time.Hour),
		"1d12h ago":                 now.Add(-36 * time.Hour),
		"90s ago":                   now.Add(-90 * time.Second),
		"99999d ago":                now.Add(-99999 * 24 * time.Hour),
		"2026-11-20":                time.Date(2026, 11, 20, 0, 0, 0, 0, zone),
		"2026-11-20 14:02":          time.Date(2026, 11, 20, 14, 2, 0, 0, zone),
		"2026-11-20 14:02:03":       time.Date(2026, 11, 20, 14, 2, 3, 0, zone),
		"2026-11-20 14:02:03.250":   time.Date(2026, 11, 20, 14, 2, 3, 250_000_000, zone), // as tables print it
		"2026-11-20T14:02:03":       time.Date(2026, 11, 20, 14, 2, 3, 0, zone),
		"2026-11-20T14:02:03Z":      time.Date(2026, 11, 20, 16, 2, 3, 0, zone),
		"2026-11-20T14:02:03.5Z":    time.Date(2026, 11, 20, 16, 2, 3, 500_000_000, zone),
		"2026-11-20T14:02:03+01:00": time.Date(2026, 11, 20, 15, 2, 3, 0, zone),
	} {
		got, err := ParseWhen(s, now)
		if err != nil || !got.Equal(want) {
			t.Errorf("%q = %v, %v; want %v", s, got, err, want)
		}
	}
	for _, s := range []string{"", "noon", "25:00", "14:60", "14", "-5m ago", "ago", "x ago", "yesterday noon", "2026-13-01", "tomorrow", "1.5d ago"} {
		if got, err := ParseWhen(s, now); err == nil {
			t.Errorf("%q = %v, want an error", s, got)
		}
	}
}

func TestSeqAt(t *testing.T) {
	now := at
	log := memlog.New(func() time.Time { now = now.Add(time.Minute); return now })
	for i := range 5 {
		_, err := log.Append(t.Context(), []events.Event{{
			ID: string(rune('a' + i)), Body: &events.Begin{Shard: ident.Shard{Source: "s", Instance: "i"}, Session: "s", Holder: "h"},
		}}, events.Fence{})
		if err != nil {
			t.Fatal(err)
		}
	}
	log.Trim(2)
	for after, want := range map[time.Duration]uint64{
		0: 2, 2 * time.Minute: 2, 2*time.Minute + 1: 3, 5 * time.Minute: 5, time.Hour: 6,
	} {
		if got, err := SeqAt(t.Context(), log, "--since", at.Add(after).Format(time.RFC3339Nano)); err != nil || got != want {
			t.Errorf("after %v: %d, %v; want %d", after, got, err, want)
		}
	}
}
