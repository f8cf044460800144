package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pki holds the files and the token that the components know each other by.
type pki struct {
	caCert                    []byte // PEM
	caFile, certFile, keyFile string
	serviceAccountKeyFile     string
	tokenFile, token          string // the admin, in system:masters
}

// newPKI writes a certificate authority, one serving certificate for 127.0.0.1, the key of the service accounts'
// tokens and the admin's token into dir.
func newPKI(dir string) (*pki, error) {
	p := &pki{
		caFile: filepath.Join(dir, "ca.crt"), certFile: filepath.Join(dir, "serving.crt"), keyFile: filepath.Join(dir, "serving.key"),
		serviceAccountKeyFile: filepath.Join(dir, "service-account.key"), tokenFile: filepath.Join(dir, "tokens.csv"),
	}
	caKey, err := writeKey("")
	if err != nil {
		return nil, err
	}
	servingKey, err := writeKey(p.keyFile)
	if err != nil {
		return nil, err
	}
	if _, err := writeKey(p.serviceAccountKeyFile); err != nil {
		return nil, err
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test control plane"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(1, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	serving := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "127.0.0.1"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if p.caCert, err = writeCertificate(p.caFile, ca, ca, caKey.Public(), caKey); err != nil {
		return nil, err
	}
	if _, err = writeCertificate(p.certFile, serving, ca, servingKey.Public(), caKey); err != nil {
		return nil, err
	}
	random := make([]byte, 16)
	rand.Read(random)
	p.token = hex.EncodeToString(random)
	line := p.token + `,admin,admin,"system:masters"` + "\n"
	if err := os.WriteFile(p.tokenFile, []byte(line), 0o600); err != nil {
		return nil, fmt.Errorf("write the admin's token: %w", err)
	}
	return p, nil
}

// writeKey makes a private key and writes it to file, unless that is "".
func writeKey(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	if file == "" {
		return key, nil
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, fmt.Errorf("write a key: %w", err)
	}
	return key, nil
}

func writeCertificate(file string, cert, parent *x509.Certificate, public any, signer *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, public, signer)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, fmt.Errorf("write a certificate: %w", err)
	}
	return text, nil
}
