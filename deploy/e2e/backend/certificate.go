package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// valid is how long a certificate of a deployment is good for.
const valid = 365 * 24 * time.Hour

// certificate writes NAME.crt, NAME.key and NAME.ca into dir. The key of the CA is
// not kept, so it signs nothing else.
func certificate(dir, name string, hosts []string) error {
	now := time.Now()
	ca := &x509.Certificate{
		Subject: pkix.Name{CommonName: "CA of " + name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(valid),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	leaf := &x509.Certificate{
		Subject: pkix.Name{CommonName: hosts[0]}, NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, h)
		}
	}
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return err
	}
	if ca, err = x509.ParseCertificate(caDER); err != nil {
		return err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	write := func(part, kind string, der []byte, mode os.FileMode) error {
		return os.WriteFile(filepath.Join(dir, name+part), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode)
	}
	return errors.Join(
		write(".key", "PRIVATE KEY", private, 0o600), write(".crt", "CERTIFICATE", der, 0o644), write(".ca", "CERTIFICATE", caDER, 0o644),
	)
}

// own gives files to the user that processes in containers run as. They refuse keys
// that others may read.
func own(uid string, files []string) error {
	n, err := strconv.Atoi(uid)
	if err != nil || n < 0 {
		return fmt.Errorf("%q is not the id of a user", uid)
	}
	for _, f := range files {
		if err := errors.Join(os.Chmod(f, 0o600), os.Chown(f, n, n)); err != nil {
			return err
		}
	}
	return nil
}
