package web

import (
	"context"
	"fmt"
	"time"

	"meshlog.dev/services/console/record"
	"meshlog.dev/services/operate/inspect"
)

// overviewData is the mesh now, and what was recorded of it.
type overviewData struct {
	*inspect.StatusView // nil: no process has reported yet
	Recorded            *recordedData
}

// recordedData is what the charts show, and the table beside them.
type recordedData struct {
	Off    bool // nothing is recorded
	Ranges []rangeLink
	Length string // of the time shown, in words
	From   int64  // its begin and end, in seconds since 1970
	To     int64
	Points []pointRow
	// Last is the newest version; nil: it is not recorded.
	Last *record.Version
}

// rangeLink is a link to another length of time.
type rangeLink struct {
	To, Text string
	Current  bool
}

// pointRow is a stretch of time. Numbers are for the charts, texts for the table; an empty
// number is a gap.
type pointRow struct {
	record.Point
	HalfMS, MostMS, SharePercent string
}

// ranges are the lengths of time that charts show, the first one without being asked.
var ranges = []struct {
	name   string
	text   string
	length time.Duration
}{
	{"1h", "hour", time.Hour}, {"6h", "6 hours", 6 * time.Hour}, {"24h", "day", 24 * time.Hour}, {"7d", "7 days", 7 * 24 * time.Hour},
}

func overview(_ context.Context, p *page) (any, error) {
	v := overviewData{StatusView: p.Mesh.Status, Recorded: &recordedData{Off: p.mesh.Recorder == nil}}
	r := v.Recorded
	chosen := ranges[0]
	for _, o := range ranges {
		if o.name == p.Param("range") {
			chosen = o
		}
	}
	for _, o := range ranges {
		r.Ranges = append(r.Ranges, rangeLink{p.With("range", o.name), o.text, o.name == chosen.name})
	}
	r.Length = chosen.text
	if r.Off {
		return v, nil
	}
	end := p.Now
	if p.At != "" && !p.Published().IsZero() {
		end = p.Published()
	}
	r.From, r.To = end.Add(-chosen.length).Unix(), end.Unix()
	points, err := p.mesh.Recorder.Chart(end, chosen.length)
	if err != nil {
		return nil, err
	}
	for _, one := range points {
		row := pointRow{Point: one, HalfMS: milliseconds(one.Half), MostMS: milliseconds(one.Most)}
		if one.Share >= 0 {
			row.SharePercent = fmt.Sprintf("%.1f", 100*one.Share)
		}
		r.Points = append(r.Points, row)
	}
	if last, ok := p.mesh.Recorder.Version(p.Version()); ok {
		r.Last = &last
	}
	return v, nil
}

// milliseconds prints a time for a chart; zero is a gap.
func milliseconds(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return fmt.Sprint(d.Milliseconds())
}

// reached prints how long a version took to reach some proxies, as far as is recorded.
func reached(d time.Duration) string {
	if d == 0 {
		return "not yet"
	}
	return d.Round(time.Millisecond).String()
}
