package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// proxy stands between the program and the API server and counts requests and the bytes of their bodies, as they are on
// the wire. Towards the program it is an API server: TLS, HTTP/2 and as many requests at a time on a connection.
type proxy struct {
	kubeconfig string // for the program
	server     *http.Server

	mu     sync.Mutex
	counts map[operation]*traffic // guarded by mu; what it points to may be read at any time
}

// traffic is what one kind of request has caused.
type traffic struct{ requests, sent, received atomic.Int64 }

// streams is how many requests the API server takes at a time on one connection.
const streams = 100

// startProxy serves a loopback port and writes the kubeconfig for it, with the rights of upstream.
func startProxy(ctx context.Context, upstream *rest.Config, kubeconfig string) (*proxy, error) {
	certificate, ca, err := selfSigned()
	if err != nil {
		return nil, err
	}
	target, err := url.Parse(upstream.Host)
	if err != nil {
		return nil, err
	}
	upstreamTLS, err := rest.TLSConfigFor(upstream)
	if err != nil {
		return nil, err
	}
	p := &proxy{kubeconfig: kubeconfig, counts: map[operation]*traffic{}}
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Body = p.count(r.In, r.In.Body)
		},
		ModifyResponse: func(r *http.Response) error {
			t := p.of(operationOf(r.Request))
			r.Body = counted{ReadCloser: r.Body, n: &t.received}
			return nil
		},
		Transport:     &http.Transport{TLSClientConfig: upstreamTLS, ForceAttemptHTTP2: true, DisableCompression: true},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // the program ends with its watches open
	}
	p.server = &http.Server{
		Handler: forward, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		HTTP2:     &http.HTTP2Config{MaxConcurrentStreams: streams},
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	go func() { _ = p.server.ServeTLS(listener, "", "") }()
	if err := writeKubeconfig(kubeconfig, "https://"+listener.Addr().String(), ca, upstream.BearerToken); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

func (p *proxy) stop() { _ = p.server.Close() }

// count notes a request and returns its body, which counts itself.
func (p *proxy) count(r *http.Request, body io.ReadCloser) io.ReadCloser {
	t := p.of(operationOf(r))
	t.requests.Add(1)
	if body == nil || body == http.NoBody {
		return body
	}
	return counted{ReadCloser: body, n: &t.sent}
}

func (p *proxy) of(op operation) *traffic {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.counts[op]
	if t == nil {
		t = &traffic{}
		p.counts[op] = t
	}
	return t
}

// snapshot returns what was counted so far.
func (p *proxy) snapshot() map[operation]amount {
	p.mu.Lock()
	counts := maps.Clone(p.counts)
	p.mu.Unlock()
	seen := make(map[operation]amount, len(counts))
	for op, t := range counts {
		seen[op] = amount{Requests: t.requests.Load(), Sent: t.sent.Load(), Received: t.received.Load()}
	}
	return seen
}

// counted adds what is read from a body to n.
type counted struct {
	io.ReadCloser
	n *atomic.Int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// selfSigned makes a certificate for the loopback address; the second result is the same as PEM.
func selfSigned() (tls.Certificate, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("make a certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func writeKubeconfig(file, server string, ca []byte, token string) error {
	const name = "bench"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: token}
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	cfg.CurrentContext = name
	return clientcmd.WriteToFile(*cfg, file)
}
