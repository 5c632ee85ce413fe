// Package keymaterial finds private keys in objects before they reach the log, which
// every process of the mesh can read.
//
// It finds keys in PEM, and in DER: PKCS#8 (also encrypted), PKCS#1, SEC 1 and PKCS#12;
// anywhere in a field, as bytes or in base64 of either alphabet, also twice, also in
// several lines. In Envoy's TLS certificates it finds any inline private key, whatever
// its bytes are. It does not find keys in other encodings, such as JWK or hex.
package keymaterial

import (
	"bytes"
	"encoding/base64"
	"slices"
)

// In returns what kind of private key b contains, in words; empty: none. b is a text, a
// payload, or a field of one.
func In(b []byte) string { return in(b, 0) }

// nested is how often base64 may be in base64.
const nested = 2

func in(b []byte, depth int) string {
	for _, end := range pemEnds {
		if bytes.Contains(b, end) {
			return "in PEM"
		}
	}
	if what := inDER(b); what != "" {
		return what
	}
	if depth == nested {
		return ""
	}
	for _, end := range pemEnds64 {
		if bytes.Contains(b, end) {
			return "in PEM, in base64"
		}
	}
	return inBase64(b, depth)
}

// pemEnds end the first line of a private key in PEM, and of one of OpenPGP.
var pemEnds = [][]byte{[]byte("PRIVATE KEY-----"), []byte("PRIVATE KEY BLOCK-----")}

// pemEnds64 are the ends in base64 at each of the three offsets, without the characters
// that depend on the bytes around them.
var pemEnds64 = func() (all [][]byte) {
	for _, end := range pemEnds {
		for offset := range 3 {
			padded := append(make([]byte, offset), end...)
			whole := base64.RawStdEncoding.EncodeToString(padded[:len(padded)/3*3])
			all = append(all, []byte(whole[(offset*8+5)/6:]))
		}
	}
	return all
}()

// Tags of DER.
const (
	integer     = 0x02
	octetString = 0x04
	oid         = 0x06
	sequence    = 0x30
)

// inDER finds a private key in DER. All of them are a SEQUENCE that begins with a
// version, except the encrypted ones.
func inDER(b []byte) string {
	for from := 0; ; {
		i := bytes.Index(b[from:], version)
		if i < 0 {
			break
		}
		i += from
		from = i + 1
		for _, header := range []int{2, 3, 4} { // bytes of the tag and length before it
			if i >= header && b[i-header] == sequence {
				if what := keyInfo(b[i-header:]); what != "" {
					return what
				}
			}
		}
	}
	if i := bytes.Index(b, passwordBased); i >= 0 {
		for _, header := range []int{4, 5, 6, 7, 8} { // of two sequences
			if i >= header && encrypted(b[i-header:]) {
				return "in encrypted PKCS#8"
			}
		}
	}
	return ""
}

var (
	version       = []byte{integer, 1}
	pkcs7         = []byte{0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 7}         // 1.2.840.113549.1.7
	passwordBased = []byte{oid, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 5} // 1.2.840.113549.1.5, of PKCS#5
)

// element reads the first element of b; its tag is 0 if there is none.
func element(b []byte) (tag byte, body, rest []byte) {
	if len(b) < 2 {
		return 0, nil, nil
	}
	n, at := int(b[1]), 2
	if n > 0x80 && n <= 0x83 && len(b) >= 2+n-0x80 {
		at += n - 0x80
		n = 0
		for _, c := range b[2:at] {
			n = n<<8 | int(c)
		}
	}
	if n > len(b)-at || b[1] == 0x80 {
		return 0, nil, nil
	}
	return b[0], b[at : at+n], b[at+n:]
}

// tagOf returns the tag of the first element of b, and 0 if there is none.
func tagOf(b []byte) byte {
	tag, _, _ := element(b)
	return tag
}

// keyInfo returns what key is at the beginning of b; empty: none.
func keyInfo(b []byte) string {
	_, body, _ := element(b)
	_, number, body := element(body)
	tag, part, rest := element(body)
	if len(number) != 1 {
		return ""
	}
	switch n := number[0]; {
	case n <= 1 && tag == sequence: // a CSR has a name there, and a CRL one behind it
		if tagOf(part) == oid && tagOf(rest) == octetString {
			return "in PKCS#8"
		}
	case n <= 1 && tag == integer: // modulus, exponents, primes, ...
		numbers := 1
		for ; tagOf(rest) == integer; numbers++ {
			_, _, rest = element(rest)
		}
		if numbers >= 8 {
			return "in PKCS#1"
		}
	case n == 1 && tag == octetString:
		if next := tagOf(rest); len(part) >= 16 && (next == 0xa0 || next == 0xa1 || len(rest) == 0) { // parameters, public key
			return "in SEC 1"
		}
	case n == 3 && tag == sequence:
		if tag, id, _ := element(part); tag == oid && bytes.HasPrefix(id, pkcs7) {
			return "in PKCS#12"
		}
	}
	return ""
}

// encrypted reports whether b begins with an EncryptedPrivateKeyInfo.
func encrypted(b []byte) bool {
	tag, body, _ := element(b)
	inner, algorithm, rest := element(body)
	return tag == sequence && inner == sequence && bytes.HasPrefix(algorithm, passwordBased) && tagOf(rest) == octetString
}

// shortest is the least number of base64 characters that can hold a key: an Ed25519 key
// in PKCS#8 has 48 bytes.
const shortest = 64

// inBase64 decodes each run of base64 in b.
func inBase64(b []byte, depth int) string {
	var run []byte
	for i := 0; i < len(b); {
		if !is64[b[i]] {
			i++
			continue
		}
		run = run[:0]
		end := i
		for {
			start := end
			for end < len(b) && is64[b[end]] {
				end++
			}
			run = append(run, b[start:end]...)
			// A line break, also one that JSON escapes, continues a long line.
			next := end + gap(b[end:])
			if next == end || end-start < 32 || next >= len(b) || !is64[b[next]] {
				break
			}
			end = next
		}
		i = end
		if len(run) < shortest {
			continue
		}
		if what := in(decode(run), depth+1); what != "" {
			return what + ", in base64"
		}
	}
	return ""
}

// gap returns the length of the white space at the beginning of b.
func gap(b []byte) int {
	n := 0
	for n < len(b) {
		switch {
		case b[n] == ' ' || b[n] == '\t' || b[n] == '\r' || b[n] == '\n':
			n++
		case b[n] == '\\' && n+1 < len(b) && (b[n+1] == 'n' || b[n+1] == 'r'):
			n += 2
		default:
			return n
		}
	}
	return n
}

var is64 = func() (is [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_") {
		is[c] = true
	}
	return is
}()

// decode decodes a run, without a character behind the last whole byte.
func decode(run []byte) []byte {
	if len(run)%4 == 1 {
		run = run[:len(run)-1]
	}
	run = slices.Clone(run)
	for i, c := range run {
		switch c {
		case '-':
			run[i] = '+'
		case '_':
			run[i] = '/'
		}
	}
	out := make([]byte, base64.RawStdEncoding.DecodedLen(len(run)))
	n, _ := base64.RawStdEncoding.Decode(out, run) // only characters of its alphabet
	return out[:n]
}
