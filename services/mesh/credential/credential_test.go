package credential_test

import (
	"bytes"
	"crypto"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/problem"
)

var all = credential.Options{Key: []byte("a key that is not on the log...."), Public: true}

// source returns a source of fields and their contents, in turn.
func source(content ...string) credential.Source {
	s := credential.Source{Namespace: "prod", Name: "web", Data: map[string][]byte{}}
	for i := 0; i < len(content); i += 2 {
		s.Data[content[i]] = []byte(content[i+1])
	}
	return s
}

func reference(t *testing.T, s credential.Source, o credential.Options) *registryv1.SecretReference {
	t.Helper()
	ref, err := credential.Reference(s, o)
	if err != nil || ref == nil {
		t.Fatalf("%v: %v, %v", slices.Sorted(maps.Keys(s.Data)), ref, err)
	}
	return ref
}

// KEY-2: a reference has what is public about a credential in clear, without the text
// around it, and HMACs of all fields.
func TestReference(t *testing.T) {
	ca, other := newAuthority(t, "ca"), newAuthority(t, "other")
	key := newKey(t, elliptic.P256())
	leaf := block("CERTIFICATE", ca.issue(7, key.Public()).Raw)
	otherLeaf := block("CERTIFICATE", other.issue(8, key.Public()).Raw)
	for name, c := range map[string]struct {
		source          credential.Source
		chain, cas, crl string
		pair            registryv1.Pair
		staple          bool
		fields          string
	}{
		"all of Kubernetes' names": {
			source: source("tls.crt", "# shop\n"+leaf+"\nits CA:\n"+ca.pem(), "tls.key", keyPEM(t, key), "ca.crt", ca.pem(), "ca.crl", ca.crl(),
				"tls.ocsp-staple", string(ca.staple(7)), "password", "x"),
			chain: leaf + ca.pem(), cas: ca.pem(), crl: "ca.crl", staple: true, pair: registryv1.Pair_PAIR_OK,
			fields: "ca.crl ca.crt tls.crt tls.key tls.ocsp-staple",
		},
		"Istio's names come first": {
			source: source("cert", leaf, "key", keyPEM(t, key), "cacert", ca.pem(), "tls.crt", otherLeaf, "tls.key", "x", "ca.crt", other.pem(), "crl", ca.crl(), "ca.crl", other.crl()),
			chain:  leaf, cas: ca.pem(), crl: "crl", pair: registryv1.Pair_PAIR_OK,
			fields: "ca.crl ca.crt cacert cert crl key tls.crt tls.key",
		},
		"a certificate counts with a key of its naming": {
			source: source("cert", otherLeaf, "tls.crt", leaf, "tls.key", keyPEM(t, key)), chain: leaf, pair: registryv1.Pair_PAIR_OK, fields: "cert tls.crt tls.key",
		},
		"a CRL under the other name": {source: source("ca.crt", ca.pem(), "crl", ca.crl()), cas: ca.pem(), crl: "crl", fields: "ca.crt crl"},
		"a CA alone":                 {source: source("cacert", ca.pem(), "tls.crt", leaf), cas: ca.pem(), fields: "cacert tls.crt"},
		"another key": {
			source: source("tls.crt", leaf, "tls.key", keyPEM(t, newKey(t, elliptic.P256()))), chain: leaf, pair: registryv1.Pair_PAIR_MISMATCH, fields: "tls.crt tls.key",
		},
		"no key": {source: source("tls.crt", leaf, "tls.key", "secret"), chain: leaf, pair: registryv1.Pair_PAIR_UNREADABLE, fields: "tls.crt tls.key"},
	} {
		t.Run(name, func(t *testing.T) {
			ref := reference(t, c.source, all)
			if ref.GetCertificateChain() != c.chain || ref.GetCaBundle() != c.cas || ref.GetPair() != c.pair {
				t.Errorf("got chain %q, CAs %q, pair %v", ref.GetCertificateChain(), ref.GetCaBundle(), ref.GetPair())
			}
			if ref.GetCrl() != string(c.source.Data[c.crl]) || c.staple != (len(ref.GetOcspStaple()) > 0) {
				t.Errorf("got CRL %q, staple %x", ref.GetCrl(), ref.GetOcspStaple())
			}
			if got := strings.Join(slices.Sorted(maps.Keys(ref.GetFields())), " "); got != c.fields {
				t.Errorf("HMACs of %q, want %q", got, c.fields)
			}
			// --public-certificates=false: HMACs only.
			private := reference(t, c.source, credential.Options{Key: all.Key})
			want := &registryv1.SecretReference{Fields: ref.GetFields(), Pair: ref.GetPair()}
			if !proto.Equal(private, want) {
				t.Errorf("without public certificates %v, want %v", private, want)
			}
		})
	}
	for _, s := range []credential.Source{source("tls.crt", leaf), source("key", keyPEM(t, key)), source("tls.crt", leaf, "tls.key", ""), source("password", "x")} {
		if ref, err := credential.Reference(s, all); ref != nil || err != nil {
			t.Errorf("%v is no credential: %v, %v", s.Data, ref, err)
		}
	}
}

// KEY-1, KEY-2: whatever is not public refuses the credential, and no error repeats it.
func TestReferenceRefuses(t *testing.T) {
	ca := newAuthority(t, "ca")
	key := newKey(t, elliptic.P256())
	private := keyPEM(t, key)
	der, _ := pem.Decode([]byte(private))
	leaf := block("CERTIFICATE", ca.issue(7, key.Public()).Raw)
	for name, c := range map[string]struct {
		source credential.Source
		want   string
	}{
		"the key in tls.crt":             {source("tls.crt", leaf+private, "tls.key", private), `data["tls.crt"]: holds a private key in PEM`},
		"the key first":                  {source("cert", private+leaf, "key", private), `data["cert"]: holds a private key in PEM`},
		"the key in the CA's field":      {source("ca.crt", ca.pem()+private), `data["ca.crt"]: holds a private key`},
		"the key in base64":              {source("ca.crt", ca.pem()+base64.StdEncoding.EncodeToString(der.Bytes)), `data["ca.crt"]: holds a private key`},
		"the key in DER":                 {source("ca.crt", ca.pem()+string(der.Bytes)), `data["ca.crt"]: holds a private key`},
		"the key as a staple":            {source("tls.crt", leaf, "tls.key", private, "tls.ocsp-staple", string(der.Bytes)), `data["tls.ocsp-staple"]: holds a private key`},
		"the key as a CRL":               {source("ca.crt", ca.pem(), "ca.crl", private), `data["ca.crl"]: holds a private key`},
		"a password as a CA":             {source("ca.crt", "tr0ub4dor&3"), `data["ca.crt"]: holds no block CERTIFICATE of PEM`},
		"a password as a certificate":    {source("tls.crt", "tr0ub4dor&3", "tls.key", private), `data["tls.crt"]: holds no block CERTIFICATE of PEM`},
		"another block":                  {source("ca.crt", ca.pem()+block("EC PARAMETERS", []byte("tr0ub4dor&3"))), `data["ca.crt"]: holds a block of PEM that is no CERTIFICATE`},
		"a block that is no certificate": {source("ca.crt", ca.pem()+block("CERTIFICATE", []byte("tr0ub4dor&3"))), `data["ca.crt"]: block 2 is no CERTIFICATE`},
		"half a block":                   {source("ca.crt", ca.pem()+ca.pem()[:200]), `data["ca.crt"]: holds a block of PEM that is broken`},
		"half a block first":             {source("ca.crt", ca.pem()[:200]+"\n"+ca.pem()), `data["ca.crt"]: holds a block of PEM that is broken`},
		"a CRL in DER":                   {source("ca.crt", ca.pem(), "ca.crl", "\x30\x03\x02\x01\x01"), `data["ca.crl"]: holds no block X509 CRL of PEM`},
		"a staple that is none":          {source("tls.crt", leaf, "tls.key", private, "tls.ocsp-staple", "tr0ub4dor&3"), `data["tls.ocsp-staple"]: is no OCSP response`},
		"an unsuccessful staple":         {source("tls.crt", leaf, "tls.key", private, "tls.ocsp-staple", "\x30\x03\x0a\x01\x06"), `data["tls.ocsp-staple"]: is an OCSP response that says unauthorized`},
		"too many certificates":          {source("ca.crt", strings.Repeat(ca.pem(), 256<<10/len(ca.pem())+1)), `more than 262144`},
	} {
		t.Run(name, func(t *testing.T) {
			ref, err := credential.Reference(c.source, all)
			var d *problem.Diagnostic
			if ref != nil || !errors.As(err, &d) || !strings.Contains(d.Error(), c.want) || d.Advice == "" {
				t.Fatalf("got %v, %v; want an error with %q", ref, err, c.want)
			}
			if text := d.Error() + d.Advice; strings.Contains(text, "tr0ub4dor") || strings.Contains(text, private[40:80]) {
				t.Errorf("the error repeats the content: %s", text)
			}
		})
	}
	// A key among the certificates is a mistake even where they stay with the watcher.
	if ref, err := credential.Reference(source("tls.crt", leaf+private, "tls.key", private), credential.Options{}); err == nil {
		t.Errorf("without public certificates the key in tls.crt makes %v", ref)
	}
}

// KEY-2, S14: pair says whether Envoy could use the key, in each form that Envoy reads.
func TestPair(t *testing.T) {
	ca := newAuthority(t, "ca")
	key := newKey(t, elliptic.P256())
	rsaKey := must(rsa.GenerateKey(rand.Reader, 2048))(t)
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	encrypted := must(x509.EncryptPEMBlock(rand.Reader, "EC PRIVATE KEY", must(x509.MarshalECPrivateKey(key))(t), []byte("x"), x509.PEMCipherAES256))(t) //nolint:staticcheck // the form that openssl writes
	sec1 := block("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(key))(t))
	for name, c := range map[string]struct {
		public crypto.PublicKey
		key    string
		want   registryv1.Pair
	}{
		"PKCS#8":                  {key.Public(), keyPEM(t, key), registryv1.Pair_PAIR_OK},
		"SEC 1":                   {key.Public(), sec1, registryv1.Pair_PAIR_OK},
		"openssl ecparam -genkey": {key.Public(), block("EC PARAMETERS", []byte{6, 8}) + sec1, registryv1.Pair_PAIR_OK},
		"PKCS#1":                  {rsaKey.Public(), block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(rsaKey)), registryv1.Pair_PAIR_OK},
		"Ed25519":                 {edKey.Public(), keyPEM(t, edKey), registryv1.Pair_PAIR_OK},
		"another key":             {key.Public(), keyPEM(t, rsaKey), registryv1.Pair_PAIR_MISMATCH},
		"encrypted as PKCS#8":     {key.Public(), block("ENCRYPTED PRIVATE KEY", []byte("x")), registryv1.Pair_PAIR_UNREADABLE},
		"encrypted as by openssl": {key.Public(), string(pem.EncodeToMemory(encrypted)), registryv1.Pair_PAIR_UNREADABLE},
		"a public key":            {key.Public(), block("PUBLIC KEY", must(x509.MarshalPKIXPublicKey(key.Public()))(t)), registryv1.Pair_PAIR_UNREADABLE},
		"garbage":                 {key.Public(), "x", registryv1.Pair_PAIR_UNREADABLE},
	} {
		s := source("tls.crt", block("CERTIFICATE", ca.issue(1, c.public).Raw), "tls.key", c.key)
		if got := reference(t, s, all).GetPair(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// KEY-5: the HMACs depend on the content, the key and the object, and every process
// with the key can compute them.
func TestSums(t *testing.T) {
	ca := newAuthority(t, "ca")
	sum := func(s credential.Source, key string) []byte {
		return reference(t, s, credential.Options{Key: []byte(key)}).GetFields()["ca.crt"]
	}
	same := source("ca.crt", ca.pem())
	elsewhere := same
	elsewhere.Name = "other"
	want := sum(same, "k")
	if len(want) != sha256.Size || !bytes.Equal(want, sum(same, "k")) {
		t.Errorf("two HMACs of the same content: %x", want)
	}
	for name, got := range map[string][]byte{"another key": sum(same, "l"), "another object": sum(elsewhere, "k"), "other content": sum(source("ca.crt", ca.pem()+"\n"), "k")} {
		if bytes.Equal(want, got) {
			t.Errorf("%s has the same HMAC", name)
		}
	}
	if got := sum(same, ""); len(got) != 0 {
		t.Errorf("an HMAC without a key: %x", got)
	}
}

// SDS-7, S14, S15: what Envoy would refuse is invalid, whatever the time; the rest is
// usable, with the times that matter.
func TestJudgePair(t *testing.T) {
	ca := newAuthority(t, "ca")
	good := newKey(t, elliptic.P256())
	leaf := func(key crypto.Signer) string { return block("CERTIFICATE", ca.issue(7, key.Public()).Raw) }
	pairOf := func(key crypto.Signer, more ...string) *registryv1.SecretReference {
		return reference(t, source(append([]string{"tls.crt", leaf(key) + ca.pem(), "tls.key", keyPEM(t, key)}, more...)...), all)
	}
	rsaKey := func(bits int) crypto.Signer { return must(rsa.GenerateKey(rand.Reader, bits))(t) }
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	mismatch := reference(t, source("tls.crt", leaf(good), "tls.key", keyPEM(t, newKey(t, elliptic.P256()))), all)
	unreadable := reference(t, source("cert", leaf(good), "key", "x"), all)
	for name, c := range map[string]struct {
		ref  *registryv1.SecretReference
		want string
	}{
		"P-256":           {pairOf(good), ""},
		"P-384":           {pairOf(newKey(t, elliptic.P384())), ""},
		"P-521":           {pairOf(newKey(t, elliptic.P521())), ""},
		"P-224":           {pairOf(newKey(t, elliptic.P224())), `data["tls.crt"]: has a key of the curve P-224, which Envoy refuses`},
		"Ed25519":         {pairOf(edKey), ""},
		"RSA-2048":        {pairOf(rsaKey(2048)), ""},
		"RSA-1024":        {pairOf(rsaKey(1024)), `data["tls.crt"]: has an RSA key of 1024 bits, which Envoy refuses`},
		"mismatch":        {mismatch, `data["tls.key"]: is not the key of the certificate in tls.crt`},
		"unreadable":      {unreadable, `data["key"]: or the certificate in cert cannot be read`},
		"a staple":        {pairOf(good, "tls.ocsp-staple", string(ca.staple(7))), ""},
		"another's":       {pairOf(good, "tls.ocsp-staple", string(ca.staple(8))), `data["tls.ocsp-staple"]: is about another certificate`},
		"no public parts": {&registryv1.SecretReference{Fields: map[string][]byte{"tls.crt": nil, "tls.key": nil}, Pair: registryv1.Pair_PAIR_OK}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			v := credential.Judge(c.ref)
			if got := first(v.Problems); got != c.want && !strings.HasPrefix(got, c.want) || (c.want == "") != (got == "") {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			if public := c.ref.GetCertificateChain() != ""; (c.want == "" || strings.Contains(c.want, "staple")) != v.Pair || v.Pair && public && len(v.Chain) != 2 {
				t.Errorf("pair %t, %d certificates", v.Pair, len(v.Chain))
			}
			for _, w := range v.Windows {
				if !w.NotBefore.Equal(begin) || !w.NotAfter.Equal(end) || w.Contains(begin.AddDate(-1, 0, 0)) || !w.Contains(begin) || w.Contains(end.AddDate(0, 0, 1)) {
					t.Errorf("window %+v", w)
				}
			}
		})
	}
	v := credential.Judge(pairOf(good, "tls.ocsp-staple", string(ca.staple(7))))
	if v.Staple == nil || len(v.Windows) != 3 || v.Windows[0].DNSNames[0] != "shop.example" {
		t.Errorf("staple %v, windows %+v", v.Staple, v.Windows)
	}
}

// SDS-7, S16, S17: a bundle is used whole or not at all, and never without CAs.
func TestJudgeBundle(t *testing.T) {
	a, b, stranger := newAuthority(t, "a"), newAuthority(t, "b"), newAuthority(t, "stranger")
	renewed := newAuthority(t, "a") // the same name, another key
	for name, c := range map[string]struct {
		cas, crl, want string
	}{
		"no CRL":                  {a.pem() + b.pem(), "", ""},
		"a CRL of each":           {a.pem() + b.pem(), b.crl() + a.crl(), ""},
		"a CA without one":        {a.pem() + b.pem(), a.crl(), `data["ca.crl"]: has no CRL of the CA "CN=b", so Envoy would refuse all its clients`},
		"one of another CA":       {a.pem(), a.crl() + stranger.crl(), `data["ca.crl"]: CRL 2, of "CN=stranger", is signed by no CA in ca.crt`},
		"one of the CA's old key": {renewed.pem(), a.crl(), `data["ca.crl"]: CRL 1, of "CN=a", is signed by no CA in ca.crt`},
	} {
		t.Run(name, func(t *testing.T) {
			fields := []string{"ca.crt", c.cas}
			if c.crl != "" {
				fields = append(fields, "ca.crl", c.crl)
			}
			v := credential.Judge(reference(t, source(fields...), all))
			if got := first(v.Problems); got != c.want {
				t.Fatalf("got %q, want %q", got, c.want)
			}
			if usable := len(v.CAs) > 0; usable != (c.want == "") || usable && c.crl != "" && len(v.CRLs) != 2 || !usable && len(v.CRLs) > 0 {
				t.Errorf("%d CAs, %d CRLs", len(v.CAs), len(v.CRLs))
			}
		})
	}
	// A Secret with a pair and a CRL, and no CA: nothing to revoke.
	key := newKey(t, elliptic.P256())
	v := credential.Judge(reference(t, source("tls.crt", block("CERTIFICATE", a.issue(1, key.Public()).Raw), "tls.key", keyPEM(t, key), "ca.crl", a.crl()), all))
	if got := first(v.Problems); !strings.Contains(got, "has no effect without CA certificates") || v.Problems[0].Severity != problem.Warning || !v.Pair {
		t.Errorf("a CRL without CAs: %q, pair %t", got, v.Pair)
	}
}

// KEY-1: Judge is the last wall: a reference with anything but certificates is refused,
// and not quoted, whatever wrote it.
func TestJudgeIsAWall(t *testing.T) {
	ca := newAuthority(t, "ca")
	private := keyPEM(t, newKey(t, elliptic.P256()))
	of := func(change func(*registryv1.SecretReference)) *registryv1.SecretReference {
		ref := &registryv1.SecretReference{Fields: map[string][]byte{"tls.crt": nil, "tls.key": nil, "ca.crt": nil, "ca.crl": nil, "tls.ocsp-staple": nil}, CaBundle: ca.pem()}
		change(ref)
		return ref
	}
	for name, ref := range map[string]*registryv1.SecretReference{
		"a key in the chain":     of(func(r *registryv1.SecretReference) { r.CertificateChain = ca.pem() + private }),
		"text in the bundle":     of(func(r *registryv1.SecretReference) { r.CaBundle = "tr0ub4dor&3\n" + ca.pem() }),
		"text behind it":         of(func(r *registryv1.SecretReference) { r.CaBundle = ca.pem() + "tr0ub4dor&3" }),
		"headers":                of(func(r *registryv1.SecretReference) { r.CaBundle = headers(t, ca, "tr0ub4dor&3") }),
		"a CRL that is a key":    of(func(r *registryv1.SecretReference) { r.Crl = private }),
		"a staple that is a key": of(func(r *registryv1.SecretReference) { r.OcspStaple = []byte(private) }),
		"too large":              of(func(r *registryv1.SecretReference) { r.CaBundle = strings.Repeat(ca.pem(), 1000) }),
		"of no field":            of(func(r *registryv1.SecretReference) { r.Fields = map[string][]byte{"tls.crt": nil, "tls.key": nil} }),
	} {
		v := credential.Judge(ref)
		if len(v.Problems) == 0 || v.Problems[0].Severity != problem.Error || len(v.CAs) > 0 && strings.Contains(name, "bundle") {
			t.Errorf("%s: %+v", name, v.Problems)
		}
		for _, d := range v.Problems {
			if text := d.Field + d.Reason + d.Advice; strings.Contains(text, "tr0ub4dor") || strings.Contains(text, private[40:80]) {
				t.Errorf("%s: the problem repeats the content: %s", name, text)
			}
		}
	}
}

func headers(t *testing.T, a *authority, secret string) string {
	t.Helper()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Headers: map[string]string{"Key": secret}, Bytes: a.cert.Raw}))
}

// SDS-3, S16: CA certificates in a ConfigMap; a field without any is an error.
func TestConfigMap(t *testing.T) {
	ca := newAuthority(t, "ca")
	for name, c := range map[string]struct {
		json string
		is   bool
		cas  int
		want string
	}{
		"CAs with text":  {`{"data":{"ca.crt":` + quote("# ours\n"+ca.pem()) + `}}`, true, 1, ""},
		"Istio's name":   {`{"data":{"cacert":` + quote(ca.pem()) + `,"crl":` + quote(ca.crl()) + `}}`, true, 1, ""},
		"other data":     {`{"data":{"a":"b"}}`, false, 0, ""},
		"no data":        {``, false, 0, ""},
		"empty":          {`{"data":{"ca.crt":""}}`, true, 0, `data["ca.crt"]: holds no block CERTIFICATE of PEM`},
		"garbage":        {`{"data":{"ca.crt":"x"}}`, true, 0, `data["ca.crt"]: holds no block CERTIFICATE of PEM`},
		"a foreign CRL":  {`{"data":{"ca.crt":` + quote(ca.pem()) + `,"ca.crl":` + quote(newAuthority(t, "b").crl()) + `}}`, true, 0, `data["ca.crl"]: CRL 1, of "CN=b", is signed by no CA in ca.crt`},
		"no CRL in it":   {`{"data":{"ca.crt":` + quote(ca.pem()) + `,"ca.crl":"x"}}`, true, 0, `data["ca.crl"]: holds no block X509 CRL of PEM`},
		"not a mapping":  {`[]`, true, 0, `data: is no mapping of texts`},
		"an empty crl":   {`{"data":{"ca.crt":` + quote(ca.pem()) + `,"ca.crl":""}}`, true, 1, ""},
		"a number in it": {`{"data":{"ca.crt":7}}`, true, 0, `data: is no mapping of texts`},
	} {
		v, is := credential.ConfigMap(&registryv1.Object{Json: []byte(c.json)})
		if got := first(v.Problems); is != c.is || len(v.CAs) != c.cas || got != c.want {
			t.Errorf("%s: %t, %d CAs, %q; want %q", name, is, len(v.CAs), got, c.want)
		}
	}
}

func quote(s string) string { return `"` + strings.ReplaceAll(s, "\n", `\n`) + `"` }

func first(all []problem.Diagnostic) string {
	if len(all) == 0 {
		return ""
	}
	return all[0].Error()
}
