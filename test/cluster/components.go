package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// controllers are those of kube-controller-manager that claims and volumes need.
var controllers = []string{
	"persistentvolume-binder-controller",
	"persistentvolumeclaim-protection-controller",
	"persistentvolume-protection-controller",
	"ephemeral-volume-controller",
	"garbage-collector-controller",
	"namespace-controller",
	"serviceaccount-controller",
}

// component returns the arguments of a component and the question whether it is ready.
func (c *Cluster) component(name string) (args []string, ready func(context.Context) error, err error) {
	switch name {
	case etcdBinary:
		return c.etcdArgs(), c.healthz(fmt.Sprintf("http://127.0.0.1:%d/health", c.ports.etcd)), nil
	case apiServerBinary:
		return append(c.apiServerArgs(), c.opts.APIServerArgs...), c.apiServerReady, nil
	case controllerManagerBinary:
		return append(c.controllerManagerArgs(), c.opts.ControllerManagerArgs...), c.controllerManagerReady, nil
	case schedulerBinary:
		args, err = c.schedulerArgs()
		return args, c.healthz(fmt.Sprintf("https://127.0.0.1:%d/healthz", c.ports.scheduler)), err
	default:
		return nil, nil, fmt.Errorf("unknown component %q", name)
	}
}

func (c *Cluster) etcdArgs() []string {
	clients, peers := fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcd), fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcdPeer)
	return []string{
		"--data-dir=" + filepath.Join(c.dir, "etcd"),
		"--listen-client-urls=" + clients, "--advertise-client-urls=" + clients,
		"--listen-peer-urls=" + peers, "--initial-advertise-peer-urls=" + peers, "--initial-cluster=default=" + peers,
		"--log-level=warn",
		"--unsafe-no-fsync", // The data lives as long as the test.
	}
}

func (c *Cluster) apiServerArgs() []string {
	return []string{
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", c.ports.etcd),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.apiServer),
		"--endpoint-reconciler-type=none", // The others refuse a loopback address.
		"--tls-cert-file=" + c.pki.certFile, "--tls-private-key-file=" + c.pki.keyFile,
		"--authorization-mode=RBAC",
		"--token-auth-file=" + c.pki.tokenFile,
		"--service-account-issuer=https://127.0.0.1",
		"--service-account-signing-key-file=" + c.pki.serviceAccountKeyFile, "--service-account-key-file=" + c.pki.serviceAccountKeyFile,
		"--service-cluster-ip-range=10.0.0.0/24",
		"--feature-gates=CrossNamespaceVolumeDataSource=true",
		"--profiling=false",
	}
}

func (c *Cluster) controllerManagerArgs() []string {
	return []string{
		"--kubeconfig=" + c.Kubeconfig(),
		"--leader-elect=false",
		"--controllers=" + strings.Join(controllers, ","),
		"--kube-api-qps=1000", "--kube-api-burst=2000", // With the default it is the bottleneck of every test.
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.controllerManager),
		"--tls-cert-file=" + c.pki.certFile, "--tls-private-key-file=" + c.pki.keyFile,
		"--profiling=false",
	}
}

// schedulerArgs writes a configuration file, since only that can raise the rate limit.
func (c *Cluster) schedulerArgs() ([]string, error) {
	config := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: 1000, burst: 2000}
`, c.Kubeconfig())
	file := filepath.Join(c.dir, "scheduler.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		return nil, fmt.Errorf("write the scheduler's configuration: %w", err)
	}
	return []string{
		"--config=" + file,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", c.ports.scheduler),
		"--tls-cert-file=" + c.pki.certFile, "--tls-private-key-file=" + c.pki.keyFile,
	}, nil
}

func (c *Cluster) apiServerReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := c.clientset.CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return err
	}
	_, err := c.clientset.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{})
	return err
}

// controllerManagerReady waits for the proof that controllers work: pods cannot be made without it either.
func (c *Cluster) controllerManagerReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := c.clientset.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
	return err
}

// healthz asks a health endpoint of a component.
func (c *Cluster) healthz(url string) func(context.Context) error {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(c.pki.caCert)
	client := &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
	}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(response.Body, 300)) // Only decorates the error below.
			return fmt.Errorf("%s answers %s: %s", url, response.Status, text)
		}
		return nil
	}
}

// ports are those of the components.
type ports struct{ etcd, etcdPeer, apiServer, controllerManager, scheduler int }

func freePorts() (p ports, err error) {
	for _, port := range []*int{&p.etcd, &p.etcdPeer, &p.apiServer, &p.controllerManager, &p.scheduler} {
		if *port, err = FreePort(); err != nil {
			return ports{}, err
		}
	}
	return p, nil
}

// picked are the ports that FreePort has returned.
var picked sync.Map

// FreePort picks a loopback port that was free a moment ago, another one each time, below the range that the kernel gives
// to outgoing connections: while a server is away, a client that dials a port of that range now and then is connected to
// itself.
func FreePort() (int, error) {
	var err error
	for range 100 {
		port := 12000 + rand.IntN(32000-12000)
		if _, again := picked.LoadOrStore(port, true); again {
			continue
		}
		var listener net.Listener
		if listener, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("find a free port: %w", err)
}
