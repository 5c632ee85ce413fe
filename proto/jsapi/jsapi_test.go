package jsapi_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/proto/jsapi"
)

func TestAsDenied(t *testing.T) {
	named := &nats.Conn{Opts: nats.Options{Name: "builder-1"}}
	for _, test := range []struct {
		text string
		nc   *nats.Conn
		want jsapi.DeniedError
	}{
		{`Permissions Violation for Publish to "$JS.API.INFO"`, named, jsapi.DeniedError{User: "builder-1", Publish: true, Subject: "$JS.API.INFO"}},
		{`Permissions Violation for Subscription to "_IN.builder.>"`, named, jsapi.DeniedError{User: "builder-1", Subject: "_IN.builder.>"}},
		{`Permissions Violation for Subscription to "a" using queue "b"`, &nats.Conn{}, jsapi.DeniedError{User: "this user", Subject: "a"}},
	} {
		err := fmt.Errorf("%w: %s", nats.ErrPermissionViolation, test.text)
		if got := jsapi.AsDenied(test.nc, err); got == nil || *got != test.want {
			t.Errorf("%s: got %+v, want %+v", test.text, got, test.want)
		}
	}
	if got := jsapi.AsDenied(named, nats.ErrTimeout); got != nil {
		t.Errorf("a timeout is read as %+v", got)
	}
}

func TestIsConflict(t *testing.T) {
	for code, want := range map[jetstream.ErrorCode]bool{10071: true, 10164: true, 10201: false} {
		if got := jsapi.IsConflict(fmt.Errorf("publish: %w", &jetstream.APIError{ErrorCode: code})); got != want {
			t.Errorf("code %d: IsConflict = %v, want %v", code, got, want)
		}
	}
	if jsapi.IsConflict(errors.New("other")) {
		t.Error("an error without a code is a conflict")
	}
}

func TestParseDirect(t *testing.T) {
	for status, want := range map[string]error{"204": jetstream.ErrMsgNotFound, "404": jetstream.ErrMsgNotFound, "503": nats.ErrNoResponders} {
		if _, err := jsapi.ParseDirect(&nats.Msg{Header: nats.Header{"Status": {status}}}); !errors.Is(err, want) {
			t.Errorf("status %s: got %v, want %v", status, err, want)
		}
	}
	good := &nats.Msg{Data: []byte("x"), Header: nats.Header{"Nats-Sequence": {"7"}, "Nats-Time-Stamp": {"2026-01-02T03:04:05.6Z"}}}
	if m, err := jsapi.ParseDirect(good); err != nil || m.Seq != 7 || m.Time.IsZero() || string(m.Data) != "x" {
		t.Errorf("got %+v, %v", m, err)
	}
	for _, missing := range []string{"Nats-Sequence", "Nats-Time-Stamp"} {
		h := nats.Header{"Nats-Sequence": {"7"}, "Nats-Time-Stamp": {"2026-01-02T03:04:05Z"}}
		h.Del(missing)
		if _, err := jsapi.ParseDirect(&nats.Msg{Header: h}); err == nil {
			t.Errorf("an answer without %s is accepted", missing)
		}
	}
}

// TestForgedAnswer reads messages whose writers gave them headers of the server: the
// headers that the server added count, and the others stay in Header (BUS-2).
func TestForgedAnswer(t *testing.T) {
	own := nats.Header{"Nats-Sequence": {"7"}, "Nats-Time-Stamp": {"2026-01-02T03:04:05Z"}, "Nats-Subject": {"a.b"}, "Nats-Stream": {"S"}}
	forged := nats.Header{
		"Nats-Sequence": {"1", "7"}, "Nats-Time-Stamp": {"2020-01-02T03:04:05Z", "2026-01-02T03:04:05Z"}, "Nats-Subject": {"x.y", "a.b"},
		"Nats-Stream": {"T", "S"}, "Status": {"404"}, "Other": {"o"},
	}
	for name, test := range map[string]struct{ header, stored nats.Header }{
		"own":    {own, nats.Header{}},
		"forged": {forged, nats.Header{"Nats-Sequence": {"1"}, "Nats-Time-Stamp": {"2020-01-02T03:04:05Z"}, "Nats-Subject": {"x.y"}, "Nats-Stream": {"T"}, "Status": {"404"}, "Other": {"o"}}},
	} {
		m, err := jsapi.ParseDirect(&nats.Msg{Header: test.header})
		if err != nil || m.Seq != 7 || m.Time.Year() != 2026 || m.Subject != "a.b" {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
		if !maps.EqualFunc(m.Header, test.stored, slices.Equal) {
			t.Errorf("%s: header is %v, want %v", name, m.Header, test.stored)
		}
	}
}
