package inspect

import (
	"errors"
	"testing"
	"time"

	auditv1 "meshlog.dev/proto/meshlog/audit/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
)

// CA-9: who has which certificate can be read from the audit and from the connections of
// proxies. A record that another account than the authority's wrote proves nothing.
func TestPrintCerts(t *testing.T) {
	const cart, web = "spiffe://td/ns/shop/sa/cart", "spiffe://td/ns/shop/sa/web"
	issued := func(after, lasts time.Duration, writer, identity, serial, by string, facts ...string) audit.Entry {
		return audit.Entry{Time: at.Add(after), Writer: writer, Record: &auditv1.Record{
			Process: "ca-1", Action: auditv1.Action_ACTION_CERTIFICATE_ISSUED, Identity: identity, Serial: serial,
			NotAfter: stamp(after + lasts), Authenticator: by, Facts: facts,
		}}
	}
	entries := []audit.Entry{
		issued(0, time.Hour, "ca/default", cart, "a0", "join-token", "address 10.0.0.1"),
		issued(30*time.Minute, time.Hour, "ca/default", cart, "a1", "certificate", "address 10.0.0.1", "serial a0"),
		issued(0, 60*time.Minute, "ca/default", web, "b0", "kubernetes"),
		issued(0, 10*time.Minute, "ca/default", web, "b1", "oidc"),
		issued(0, 10*time.Minute, "ca/default", web, "b2", "oidc"),
		issued(0, time.Hour, "file/default", "spiffe://td/ns/shop/sa/forged", "c0", "join-token"),
		{Writer: "ca/default", Record: &auditv1.Record{Action: auditv1.Action_ACTION_CERTIFICATE_REFUSED, Identity: web}},
		{Writer: "ca/default", Err: errors.New("no record")},
	}
	frontends := []*reportv1.FrontendReport{
		{Frontend: "f1", Proxies: []*reportv1.ProxyReport{
			{Id: "cart-1", Identity: cart, CertificateSerial: "a1", CertificateEnds: stamp(90 * time.Minute)},
			{Id: "cart-1", Identity: cart, CertificateSerial: "a1", CertificateEnds: stamp(90 * time.Minute)},
			{Id: "web-1", Identity: web, CertificateSerial: "b1", CertificateEnds: stamp(10 * time.Minute)},
			{Id: "spire-1", Identity: "spiffe://td/spire", CertificateSerial: "d0", CertificateEnds: stamp(56 * time.Minute)},
			{Id: "plain-1"},
		}},
		{Frontend: "f2", Leaving: true, Proxies: []*reportv1.ProxyReport{{Id: "gone", Identity: "spiffe://td/gone"}}},
	}
	now := at.Add(55 * time.Minute)
	for name, all := range map[string]bool{"certs": false, "certs-all": true} {
		operatetest.Golden(t, name, func(o *command.Output) {
			views := viewCerts(entries, frontends, all, now)
			o.Print(views, func() { showCerts(views, now, o) })
		})
	}
}
