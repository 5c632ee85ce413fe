package history

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
)

// KEY-13: which key or certificate was given for which proxy can be read, as a table
// and as data.
func TestPrintAudit(t *testing.T) {
	digest := bytes.Repeat([]byte{0xab}, 32)
	entries := []audit.Entry{
		{Seq: 7, Time: at, Writer: "kubernetes/eu", Record: &auditv1.Record{
			Process: "watcher-1", Action: auditv1.Action_ACTION_KEY_GIVEN, Object: "SecretReference shop/cert (kubernetes/eu)", Digest: digest,
		}},
		{Seq: 8, Time: at.Add(time.Second), Writer: "frontend", Record: &auditv1.Record{
			Process: "frontend-1", Action: auditv1.Action_ACTION_KEY_REFUSED, Identity: "spiffe://td/ns/shop/sa/edge", Proxy: "edge-1",
			Name: "kubernetes://shop/cert", Reason: "no Gateway of the proxy names it",
		}},
		{Seq: 10, Time: at.Add(2 * time.Second), Writer: "ca/default", Record: &auditv1.Record{
			Process: "ca-1", Action: auditv1.Action_ACTION_CERTIFICATE_ISSUED, Identity: "spiffe://td/ns/shop/sa/cart", Digest: digest, Serial: "1f2e3d",
			NotAfter: timestamppb.New(at.Add(24 * time.Hour)), Authenticator: "TokenReview", Facts: []string{"pod shop/cart-1"},
		}},
		{Seq: 11, Time: at.Add(3 * time.Second), Writer: "file/default", Err: errors.New("it is an answer of the server")},
		{Seq: 12, Time: at.Add(4 * time.Second), Writer: "ca/default", Record: &auditv1.Record{Process: "ca-1", Action: 99}},
	}
	operatetest.Golden(t, "audit", func(o *command.Output) {
		p := auditPrinter{out: o}
		p.print(entries)
	})
}
