package record

import (
	"slices"
	"time"
)

// Point is a stretch of time, for a chart.
type Point struct {
	Time     time.Time // its begin
	Versions int
	// Half is the median over the versions of the time until half of the streams had them; Most
	// the longest time until 99 % had one. Zero: no version reached so many.
	Half, Most       time.Duration
	NACKs            uint32
	Errors, Warnings int // the most in a minute
	// Share is the smallest part of the streams that had the newest version at the end of a
	// minute; below 0: there were no streams.
	Share float64
}

// points is how many a chart has at most.
const points = 120

// Chart returns what was recorded in the time before now, in stretches of equal length; those in
// which nothing was recorded are absent.
func (r *Recorder) Chart(now time.Time, length time.Duration) ([]Point, error) {
	step := max(length/points, time.Minute).Round(time.Minute)
	begin := now.UTC().Add(-length).Truncate(step).Add(step)
	versions, minutes, err := r.Since(begin)
	if err != nil {
		return nil, err
	}
	at := map[time.Time]*Point{}
	point := func(t time.Time) *Point {
		t = t.Truncate(step)
		if at[t] == nil {
			at[t] = &Point{Time: t, Share: -1}
		}
		return at[t]
	}
	for _, m := range minutes {
		p := point(m.Time)
		p.Versions += m.Versions
		p.Errors, p.Warnings = max(p.Errors, m.Errors), max(p.Warnings, m.Warnings)
		if m.Streams > 0 {
			if share := float64(m.Applied) / float64(m.Streams); p.Share < 0 || share < p.Share {
				p.Share = share
			}
		}
	}
	halves := map[*Point][]time.Duration{}
	for _, v := range versions {
		p := point(v.Published)
		if v.Half > 0 {
			halves[p] = append(halves[p], v.Half)
		}
		p.Most, p.NACKs = max(p.Most, v.Most), p.NACKs+v.NACKs
	}
	all := make([]Point, 0, len(at))
	for _, p := range at {
		if h := halves[p]; len(h) > 0 {
			slices.Sort(h)
			p.Half = h[len(h)/2]
		}
		all = append(all, *p)
	}
	slices.SortFunc(all, func(a, b Point) int { return a.Time.Compare(b.Time) })
	return all, nil
}
