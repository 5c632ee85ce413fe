package jury_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/mesh/fold"
)

// A report counts whatever time it claims, the year 1 too, which is Go's zero time.
func TestReportOfAnyTime(t *testing.T) {
	f := fold.New("one", fold.KindJudge{})
	for _, at := range []*timestamppb.Timestamp{nil, {}, timestamppb.New(time.Time{}), {Seconds: -1 << 62}, {Seconds: 1 << 62, Nanos: -5}} {
		j := jury.New(fixed{}, start, slog.New(slog.DiscardHandler))
		for range 2 {
			j.Hear(start, &reportv1.FrontendReport{Frontend: "f0", Time: at, Verdicts: []*reportv1.Verdict{verdict(0, 0, "p1")}})
		}
		if j.Suspect(start, f); len(j.Suspects()) != 1 {
			t.Errorf("a report of the time %v does not count", at)
		}
	}
}

// XDS-5: a client with the frontends' key cannot make a builder keep reports without
// end: those that exceed the limits do not count, a Diagnostic says so, and a
// frontend that was known before still counts.
func TestReportsAreLimited(t *testing.T) {
	f := fold.New("one", fold.KindJudge{})
	large := strings.Repeat("x", 1<<20)
	for name, flood := range map[string]func(hear func(frontend, resource, message string)){
		"many names":          func(hear func(_, _, _ string)) { repeat(2000, func(n string) { hear(n, n, "") }) },
		"long names":          func(hear func(_, _, _ string)) { hear(large, "r", "") },
		"one report for ever": func(hear func(_, _, _ string)) { repeat(2000, func(n string) { hear("loud", n, "") }) },
		"large verdicts":      func(hear func(_, _, _ string)) { repeat(100, func(n string) { hear(n, n, large) }) },
	} {
		j := jury.New(fixed{}, start, slog.New(slog.DiscardHandler))
		hear := func(frontend, resource, message string) {
			v := verdict(0, 0, "p1")
			v.Name, v.Message = resource, message
			j.Hear(start, &reportv1.FrontendReport{Frontend: frontend, Time: timestamppb.New(start), Verdicts: []*reportv1.Verdict{v}})
		}
		hear("honest", "a", "")
		flood(hear)
		hear("honest", "b", "")
		j.Suspect(start, f)
		if all := j.Diagnostics(); len(all) != 1 || !strings.Contains(all[0].Reason, "report too much") {
			t.Errorf("%s: diagnostics %v", name, all)
		}
		names := map[string]bool{}
		for _, s := range j.Suspects() {
			names[s.GetName()] = true
		}
		if !names["a"] {
			t.Errorf("%s: the frontend that was known before does not count", name)
		}
		later := start.Add(time.Minute) // reports expire
		j.Suspect(later, f)
		hear("honest", "b", "")
		if j.Suspect(later, f); len(j.Diagnostics()) != 0 {
			t.Errorf("%s: a minute later, diagnostics %v", name, j.Diagnostics())
		}
	}
}

// A frontend that invents rejections, each of an identity of its own, leaves room for the
// suspects of other frontends (XDS-5).
func TestOneFrontendTakesNotAllSuspects(t *testing.T) {
	f := fold.New("one", fold.KindJudge{})
	j := jury.New(fixed{}, start, slog.New(slog.DiscardHandler))
	hear := func(frontend string, verdicts ...*reportv1.Verdict) {
		j.Hear(start, &reportv1.FrontendReport{Frontend: frontend, Time: timestamppb.New(start), Verdicts: verdicts})
	}
	var invented []*reportv1.Verdict
	repeat(200, func(n string) {
		v := verdict(0, 0, n)
		v.Name = "a-" + n
		invented = append(invented, v)
	})
	hear("loud", invented...)
	j.Suspect(start, f)
	real := verdict(0, 0, "p1")
	real.Name = "z"
	hear("honest", real)
	j.Suspect(start, f)
	names := map[string]bool{}
	for _, s := range j.Suspects() {
		names[s.GetName()] = true
	}
	if !names["z"] || len(names) < 2 {
		t.Errorf("%d suspects, that of the honest frontend among them: %t", len(names), names["z"])
	}
}

func repeat(n int, f func(name string)) {
	for i := range n {
		f(fmt.Sprintf("name-%d", i))
	}
}
