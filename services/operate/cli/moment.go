package cli

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// moment is a point of the past that somebody named.
type moment struct {
	Version ident.Position
	// Manifest is nil where the position was not published.
	Manifest *store.Manifest
}

// momentForms is what findMoment takes, for help and messages.
const momentForms = `A VERSION is written whole (1795275208.13), by its end (.13), as latest,
latest~2 (two before it), or as a time ("14:02", "10m ago", "yesterday 14:02"):
the version that was served then.`

var (
	latestForm   = regexp.MustCompile(`^latest(?:~(\d+))?$`)
	positionForm = regexp.MustCompile(`^(?:\d*\.)?\d+$`)
)

// findMoment reads VERSION. Where it names a position that was not published,
// that is on the log, the log will do.
func findMoment(ctx context.Context, p *past.Past, arg string, now time.Time) (moment, error) {
	if m := latestForm.FindStringSubmatch(arg); m != nil {
		n, err := strconv.Atoi("0" + m[1])
		if err != nil {
			return moment{}, usage("version %q: %w", arg, err)
		}
		return beforeLatest(ctx, p, n)
	}
	if positionForm.MatchString(arg) {
		return findPosition(ctx, p, arg)
	}
	t, err := parseWhen(arg, now)
	if err != nil {
		return moment{}, usage("version %q: want EPOCH.SEQ, .SEQ, latest, latest~N or a time; `meshlog versions` lists them", arg)
	}
	return servedAt(ctx, p, t)
}

func beforeLatest(ctx context.Context, p *past.Past, n int) (moment, error) {
	have := 0
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return moment{}, err
		}
		if have == n {
			return momentOf(m), nil
		}
		have++
	}
	if have == 0 {
		return moment{}, notFound("%s has no versions: nothing was published yet", p.Name)
	}
	return moment{}, notFound("version latest~%d: only %s kept; `meshlog versions -n -1` lists them", n, plural(have, "version is", "versions are"))
}

// servedAt is the last version that was published at t or before it.
func servedAt(ctx context.Context, p *past.Past, t time.Time) (moment, error) {
	var oldest *store.Manifest
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return moment{}, err
		}
		if oldest = m; !publishedAt(m).After(t) {
			return momentOf(m), nil
		}
	}
	if oldest == nil {
		return moment{}, notFound("%s has no versions: nothing was published yet", p.Name)
	}
	return moment{}, notFound("at %s no version was served that is still kept; the oldest is %s, of %s",
		clock(t), store.VersionOf(oldest.GetVersion()), clock(publishedAt(oldest)))
}

// publishedAt is when a version came to be, as far as is known.
func publishedAt(m *store.Manifest) time.Time {
	if m.GetPublishTime() != nil {
		return m.GetPublishTime().AsTime()
	}
	return m.GetRecordTime().AsTime()
}

// findPosition reads EPOCH.SEQ, the end of one, or SEQ.
func findPosition(ctx context.Context, p *past.Past, arg string) (moment, error) {
	end := arg
	if !strings.Contains(end, ".") {
		end = "." + end
	}
	var found []moment
	for m, err := range p.Versions.History(ctx) {
		if err != nil {
			return moment{}, err
		}
		at := momentOf(m)
		if at.Version.String() == arg {
			return at, nil
		}
		if strings.HasSuffix(at.Version.String(), end) {
			found = append(found, at)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		var names []string
		for _, m := range found {
			names = append(names, m.Version.String())
		}
		return moment{}, usage("version %q may be %s; write it whole", arg, strings.Join(names, " or "))
	}
	return unpublished(ctx, p, arg)
}

// unpublished is a position of the log that was never a version.
func unpublished(ctx context.Context, p *past.Past, arg string) (moment, error) {
	missing := notFound("version %s: never published, or no longer kept; `meshlog versions` lists them", arg)
	v, err := ident.ParsePosition(arg)
	if err != nil {
		if v.Seq, err = strconv.ParseUint(strings.TrimPrefix(arg, "."), 10, 64); err != nil {
			return moment{}, missing
		}
	}
	if p.Log == nil {
		return moment{}, missing
	}
	at, err := past.Locate(ctx, p, v.Seq)
	if err != nil {
		return moment{}, fmt.Errorf("%w; nor can it be made from the log: %w", missing, err)
	}
	if v.Epoch != 0 && at != v {
		return moment{}, fmt.Errorf("%w; record %d of the log lies at %s", missing, v.Seq, at)
	}
	return moment{Version: at}, nil
}

// content is what was served at a moment.
func (m moment) content(ctx context.Context, p *past.Past) (*store.Snapshot, error) {
	at, err := past.At(ctx, p, m.Version)
	return at.Snapshot, err
}

func momentOf(m *store.Manifest) moment { return moment{store.VersionOf(m.GetVersion()), m} }
