package registry

import (
	"math"
	"time"
)

// Counts are the sizes of a listing.
type Counts struct{ Services, Instances int }

// Doubt decides whether a listing may remove what it lacks (REG-9). A registry that came
// back without its data, or a token that lost its rights, answers as one from which
// everything was removed; so after a reason for doubt a listing that lacks much removes
// nothing until a second one agrees. The zero value has published nothing and doubts
// nothing. Not safe for concurrent use.
type Doubt struct {
	// Wait is the time between the two listings; 0: 30 s.
	Wait time.Duration

	published Counts
	why       string // the reason for doubt; empty: none
	first     Counts // the listing that is doubted
	since     time.Time
}

// Suspect makes the next listing doubtful: an error, a new connection, an index that
// went back.
func (d *Doubt) Suspect(why string) {
	if d.why == "" {
		d.why = why
	}
	d.since = time.Time{} // the second listing must be of a connection without errors
}

// Published takes what the log has after a whole listing or a change.
func (d *Doubt) Published(c Counts) { d.published = c }

// Reason returns why the last listing is doubted; empty: it is not.
func (d *Doubt) Reason() string {
	if d.since.IsZero() {
		return ""
	}
	return d.why
}

// Lacks reports whether, with a reason for doubt, a registry of that size lacks so much
// that only a listing may decide what is removed.
func (d *Doubt) Lacks(c Counts) bool { return d.why != "" && lacks(c, d.published) }

// Judge reports whether a listing of that size may remove objects; if not, when to list
// again.
func (d *Doubt) Judge(c Counts, now time.Time) (whole bool, again time.Time) {
	wait := d.Wait
	if wait == 0 {
		wait = 30 * time.Second
	}
	switch {
	case d.why == "", !lacks(c, d.published):
	case d.since.IsZero(), lacks(c, d.first), lacks(d.first, c):
		d.first, d.since = c, now // the first one, or one that does not agree with it
		return false, now.Add(wait)
	case now.Before(d.since.Add(wait)):
		return false, d.since.Add(wait)
	}
	d.why, d.first, d.since, d.published = "", Counts{}, time.Time{}, c
	return true, time.Time{}
}

// lacks reports whether a listing lacks more than five and more than a tenth of what
// another one has.
func lacks(c, of Counts) bool {
	much := func(have, had int) bool { return had-have > max(5, int(math.Ceil(float64(had)/10))) }
	return much(c.Services, of.Services) || much(c.Instances, of.Instances)
}
