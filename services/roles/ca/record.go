package ca

import (
	"context"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/ca"
	"meshlog.dev/services/internal/audit"
)

// recorder writes the audit of the authority (CA-9).
type recorder struct{ to *audit.Writer }

// Clients choose some texts, such as the subject of a token, and a record has 2 KiB.
const (
	maxFact   = 160
	maxReason = 480
	maxFacts  = 5
)

// record writes a record. One of an issued certificate is stored when record returns; one
// of a refusal waits for the bus, so that strangers do not.
func (r recorder) record(ctx context.Context, c ca.Record) error {
	out := &auditv1.Record{Action: auditv1.Action_ACTION_CERTIFICATE_REFUSED, Authenticator: c.Authenticator, Serial: c.Serial}
	if c.Authenticator != "" && len(c.Serving) == 0 {
		out.Identity = c.Identity.String()
	}
	if digest, err := hex.DecodeString(c.KeyHash); err == nil {
		out.Digest = digest
	}
	facts := []string{"address " + c.Address}
	if len(c.Serving) > 0 {
		facts = append(facts, "serving "+strings.Join(c.Serving, ","))
	}
	for _, name := range slices.Sorted(maps.Keys(c.Facts)) {
		facts = append(facts, name+" "+c.Facts[name])
	}
	for _, f := range facts[:min(len(facts), maxFacts)] {
		out.Facts = append(out.Facts, cut(f, maxFact))
	}
	if c.Code == codes.OK {
		out.Action, out.NotAfter = auditv1.Action_ACTION_CERTIFICATE_ISSUED, timestamppb.New(c.Ends)
		return r.to.Store(ctx, out)
	}
	out.Reason = cut(c.Code.String()+": "+c.Reason, maxReason)
	r.to.Write(out)
	return nil
}

func cut(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}
