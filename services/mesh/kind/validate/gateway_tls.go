package validate

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"strings"

	networking "istio.io/api/networking/v1alpha3"
)

// serverTLS checks the TLS settings of a Gateway's server (GW-9 to GW-15).
func (c *checker) serverTLS(at *fieldPath, s *networking.Server) {
	field, tls := at.field("tls"), s.GetTls()
	protocol := strings.ToUpper(s.GetPort().GetProtocol())
	encrypted := protocol == "HTTPS" || protocol == "TLS"
	http := slices.Contains([]string{"HTTP", "HTTP2", "GRPC", "GRPC-WEB"}, protocol)
	files := tls.GetServerCertificate() != "" || tls.GetPrivateKey() != "" || tls.GetCaCertificates() != "" || len(tls.GetTlsCertificates()) > 0
	named := tls.GetCredentialName() != "" || len(tls.GetCredentialNames()) > 0
	mode := tls.GetMode()
	forwards := mode == networking.ServerTLSSettings_PASSTHROUGH || mode == networking.ServerTLSSettings_AUTO_PASSTHROUGH
	switch {
	case tls == nil:
		c.errorIf(encrypted, field, "add tls with its mode and certificates", "is missing: the protocol is %s", protocol)
		return
	case http && (files || named || mode != networking.ServerTLSSettings_PASSTHROUGH):
		c.errorf(field, "use protocol HTTPS, or leave nothing but httpsRedirect", "does not go with protocol %s", protocol)
		return
	case !http && !encrypted && forwards:
		c.errorf(field, "use protocol TLS, or remove tls", "does not go with protocol %s", protocol)
		return
	}
	if tls.GetHttpsRedirect() && !http {
		c.warnf(field.field("httpsRedirect"), "put it on the server with protocol HTTP", "has no effect with protocol %s", protocol)
	}
	switch mode {
	case networking.ServerTLSSettings_PASSTHROUGH, networking.ServerTLSSettings_AUTO_PASSTHROUGH:
		return
	case networking.ServerTLSSettings_SIMPLE, networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL:
		c.certificates(field, tls, files, named)
	case networking.ServerTLSSettings_ISTIO_MUTUAL:
		c.errorIf(files || named, field, useMutual, meshCertificates)
	default:
		c.errorf(field.field("mode"), "use SIMPLE, MUTUAL or PASSTHROUGH", "%d is not a mode", mode)
	}
	c.parameters(field, tls)
	c.clientCertificates(field, tls, named)
}

// certificates checks where a server has its certificates: in credentials, or in files.
func (c *checker) certificates(at *fieldPath, tls *networking.ServerTLSSettings, files, named bool) {
	if files && named {
		c.warnf(at.field("credentialName"), keepOne, "takes precedence over the certificates in files, which are not read")
	}
	if tls.GetCredentialName() != "" && len(tls.GetCredentialNames()) > 0 {
		c.warnf(at.field("credentialName"), keepOne, "has no effect beside credentialNames")
	}
	names := at.field("credentialNames")
	c.errorIf(len(tls.GetCredentialNames()) > 2, names, "name one with an RSA key and one with an ECDSA key", "names more than two")
	for i, name := range tls.GetCredentialNames() {
		c.errorIf(name == "", names.item(i), "name a Secret", isEmpty)
		c.errorIf(slices.Contains(tls.GetCredentialNames()[:i], name), names.item(i), keepOne, isTwice, name)
	}
	mutual := tls.GetMode() != networking.ServerTLSSettings_SIMPLE
	cas, several := at.field("caCertificates"), tls.GetTlsCertificates()
	switch {
	case named:
		return
	case len(several) > 0:
		c.errorIf(len(several) > 2, at.field("tlsCertificates"), "name one with an RSA key and one with an ECDSA key", "names more than two")
		for i, one := range several {
			c.named(at.field("tlsCertificates").item(i).field("serverCertificate"), one.GetServerCertificate())
			c.named(at.field("tlsCertificates").item(i).field("privateKey"), one.GetPrivateKey())
		}
		mutual = mutual && several[0].GetCaCertificates() == ""
	default:
		c.named(at.field("serverCertificate"), tls.GetServerCertificate())
		c.named(at.field("privateKey"), tls.GetPrivateKey())
	}
	if mutual && tls.GetCaCertCredentialName() == "" {
		c.named(cas, tls.GetCaCertificates())
	}
}

// named checks the path of a file that is part of a secret's name.
func (c *checker) named(at *fieldPath, path string) {
	c.file(at, path)
	c.errorIf(strings.Contains(path, "~"), at, "rename the file", "%q has a ~, which separates files in the name of a secret", path)
}

// parameters checks versions and ciphers (GW-15).
func (c *checker) parameters(at *fieldPath, tls *networking.ServerTLSSettings) {
	lowest, highest := tls.GetMinProtocolVersion(), tls.GetMaxProtocolVersion()
	for _, v := range []struct {
		name string
		is   networking.ServerTLSSettings_TLSProtocol
	}{{"minProtocolVersion", lowest}, {"maxProtocolVersion", highest}} {
		if _, known := networking.ServerTLSSettings_TLSProtocol_name[int32(v.is)]; !known {
			c.errorf(at.field(v.name), "use TLSV1_2 or TLSV1_3", "%d is not a version", v.is)
		}
	}
	if lowest == networking.ServerTLSSettings_TLS_AUTO && highest != lowest {
		lowest = networking.ServerTLSSettings_TLSV1_2 // the default
	}
	if highest != networking.ServerTLSSettings_TLS_AUTO && lowest > highest {
		c.errorf(at.field("maxProtocolVersion"), "write a version from the minimum on", "%s is below the minimum of %s: no connection would be possible", highest, lowest)
	}
	c.eachOf(at.field("cipherSuites"), tls.GetCipherSuites(), CipherSuites)
}

// sha256Size is the length of a SHA-256.
const sha256Size = 32

// clientCertificates checks what a server wants of the certificates of clients (GW-14).
func (c *checker) clientCertificates(at *fieldPath, tls *networking.ServerTLSSettings, named bool) {
	const ignored, advice = "has no effect with mode %s", "use mode MUTUAL, or remove it"
	mode := tls.GetMode()
	none := mode == networking.ServerTLSSettings_SIMPLE || mode == networking.ServerTLSSettings_ISTIO_MUTUAL
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"subjectAltNames", len(tls.GetSubjectAltNames()) > 0}, {"caCrl", tls.GetCaCrl() != ""}, {"caCertCredentialName", tls.GetCaCertCredentialName() != ""},
		{"verifyCertificateSpki", mode == networking.ServerTLSSettings_SIMPLE && len(tls.GetVerifyCertificateSpki()) > 0},
		{"verifyCertificateHash", mode == networking.ServerTLSSettings_SIMPLE && len(tls.GetVerifyCertificateHash()) > 0},
	} {
		if f.set && none {
			c.warnf(at.field(f.name), advice, ignored, mode)
		}
	}
	if tls.GetCaCrl() != "" && (named || tls.GetCaCertCredentialName() != "") {
		c.warnf(at.field("caCrl"), "put the CRL into the credential, as ca.crl", "has no effect beside a credential")
	}
	for i, name := range tls.GetSubjectAltNames() {
		c.errorIf(name == "", at.field("subjectAltNames").item(i), "write a name that certificates of clients have", isEmpty)
	}
	for i, sum := range tls.GetVerifyCertificateSpki() {
		if b, err := base64.StdEncoding.DecodeString(sum); err != nil || len(b) != sha256Size {
			c.errorf(at.field("verifyCertificateSpki").item(i), "write the 44 letters of a SHA-256 in base64", "%q is not the SHA-256 of a public key", sum)
		}
	}
	for i, sum := range tls.GetVerifyCertificateHash() {
		if b, err := hex.DecodeString(withoutColons(sum)); err != nil || len(b) != sha256Size {
			c.errorf(at.field("verifyCertificateHash").item(i), "write the 64 digits of a SHA-256 in hex, or with a colon after each two", "%q is not the SHA-256 of a certificate", sum)
		}
	}
}

// withoutColons returns a hash without the colons that stand after each two digits; if
// they stand elsewhere, it is returned as it is.
func withoutColons(sum string) string {
	pairs := strings.Split(sum, ":")
	for _, p := range pairs {
		if len(p) != 2 {
			return sum
		}
	}
	return strings.Join(pairs, "")
}
