package chaos

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// fate is what happens to one request. The zero value lets it pass.
type fate struct {
	// status, if not zero, is answered with this reason, and the API server is not asked.
	status int
	reason metav1.StatusReason
	// before runs when the request has come, after when the API server has answered it and before the client
	// knows.
	before, after func()
	// lose breaks the connection: in place of the request, or when the API server has answered it.
	loseRequest, loseAnswer bool
}

// proxy stands between a sidecar and the API server and lets judge decide the fate of each request.
type proxy struct {
	server  *httptest.Server
	reverse *httputil.ReverseProxy

	mu    sync.Mutex
	judge func(*http.Request) fate // nil: all pass
}

// newProxy starts a proxy in front of the API server of config and stops it when the test ends. It passes the
// client's own credentials on and adds none.
func newProxy(tb testing.TB, config *rest.Config) *proxy {
	tb.Helper()
	backend, err := url.Parse(config.Host)
	if err != nil {
		tb.Fatal(err)
	}
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(config))
	if err != nil {
		tb.Fatal(err)
	}
	quiet := log.New(io.Discard, "", 0)
	p := &proxy{reverse: &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(backend) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      quiet,
		// An API server that is away looks like one: the connection breaks.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}}
	// Credentials are sent only over TLS.
	p.server = httptest.NewUnstartedServer(p)
	p.server.Config.ErrorLog = quiet // Broken connections are what it is for.
	p.server.StartTLS()
	tb.Cleanup(func() {
		p.server.CloseClientConnections()
		p.server.Close()
	})
	return p
}

// judgeBy makes judge decide from now on; nil lets all pass.
func (p *proxy) judgeBy(judge func(*http.Request) fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = judge
}

func (p *proxy) fateOf(r *http.Request) fate {
	p.mu.Lock()
	judge := p.judge
	p.mu.Unlock()
	if judge == nil {
		return fate{}
	}
	return judge(r)
}

// ServeHTTP lets the request meet its fate.
func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f := p.fateOf(r)
	if f.before != nil {
		f.before()
	}
	switch {
	case f.loseRequest:
		panic(http.ErrAbortHandler)
	case f.status != 0:
		refuse(w, f)
	case f.loseAnswer || f.after != nil:
		answer := newKept()
		p.reverse.ServeHTTP(answer, r)
		if f.after != nil {
			f.after()
		}
		if f.loseAnswer {
			panic(http.ErrAbortHandler)
		}
		answer.send(w)
	default:
		p.reverse.ServeHTTP(w, r)
	}
}

func refuse(w http.ResponseWriter, f fate) {
	w.Header().Set("Content-Type", "application/json")
	if f.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(f.status)
	_ = json.NewEncoder(w).Encode(metav1.Status{ // A client that has left need not be told.
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Message: "refused by the chaos proxy", Reason: f.reason, Code: int32(f.status), //nolint:gosec // an HTTP status
	})
}

// kubeconfig writes a kubeconfig that reaches the API server through the proxy with the credentials of config.
func (p *proxy) kubeconfig(tb testing.TB, config *rest.Config) string {
	tb.Helper()
	const name = "chaos"
	file := filepath.Join(tb.TempDir(), "kubeconfig")
	err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {
			Server:                   p.server.URL,
			CertificateAuthorityData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: p.server.Certificate().Raw}),
		}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: config.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, file)
	if err != nil {
		tb.Fatal(fmt.Errorf("write the kubeconfig of the proxy: %w", err))
	}
	return file
}

// kept is an answer that is held back.
type kept struct {
	header http.Header
	status int
	body   []byte
}

func newKept() *kept { return &kept{header: http.Header{}, status: http.StatusOK} }

// Header returns the header.
func (k *kept) Header() http.Header { return k.header }

// WriteHeader keeps the status.
func (k *kept) WriteHeader(status int) { k.status = status }

// Write keeps a part of the body.
func (k *kept) Write(part []byte) (int, error) {
	k.body = append(k.body, part...)
	return len(part), nil
}

func (k *kept) send(w http.ResponseWriter) {
	maps.Copy(w.Header(), k.header)
	w.WriteHeader(k.status)
	_, _ = w.Write(k.body) // A client that has left need not be told.
}
