package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/klog/v2"
)

// Address says where the API server is. The zero value means "inside the cluster".
type Address struct {
	// Kubeconfigs are the files, in order of precedence: one is taken as it is, several are merged as kubectl
	// merges them. Empty: none.
	Kubeconfigs []string
	// Master is the flag --master: the server's URL, alone or in place of the one in the kubeconfig.
	Master string
	// Context is the kubeconfig's context to use; empty means its current one.
	Context string
	// As is the user to impersonate; empty means nobody.
	As string
}

// overrides returns what takes precedence over the kubeconfig.
func (a Address) overrides() *clientcmd.ConfigOverrides {
	return &clientcmd.ConfigOverrides{
		CurrentContext: a.Context,
		ClusterInfo:    clientcmdapi.Cluster{Server: a.Master},
		AuthInfo:       clientcmdapi.AuthInfo{Impersonate: a.As},
	}
}

// RESTConfig reads the configuration of API requests: from the kubeconfig that applies, else from Master alone,
// else from the service account of the pod. It reads files and makes no request. The result has no limits and
// no user agent; NewClients sets them on copies.
func RESTConfig(ctx context.Context, from Address) (*rest.Config, error) {
	rules, path := loadingRules(ctx, from)
	if path == "" && from.Context != "" {
		return nil, fmt.Errorf("context %q: there is no kubeconfig to have it, name one with --kubeconfig", from.Context)
	}
	if path == "" && from.Master == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("in-cluster configuration (no --kubeconfig, --master or KUBECONFIG is set): %w", err)
		}
		config.Impersonate.UserName = from.As
		return config, nil
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, from.overrides()).ClientConfig()
	switch {
	case err == nil:
		return config, nil
	case path == "":
		return nil, fmt.Errorf("configuration from --master %q: %w", from.Master, err)
	case clientcmd.IsEmptyConfig(err):
		return nil, fmt.Errorf("kubeconfig %q: it does not exist or is empty: %w", path, err)
	}
	return nil, fmt.Errorf("kubeconfig %q: %w", path, err)
}

// Namespace returns the namespace that the kubeconfig's context names; "default" when it names none, and
// without a kubeconfig. It reads files and makes no request.
func Namespace(ctx context.Context, from Address) (string, error) {
	rules, path := loadingRules(ctx, from)
	if path == "" {
		return metav1.NamespaceDefault, nil
	}
	namespace, _, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: from.Context}).Namespace()
	if err != nil {
		return "", fmt.Errorf("kubeconfig %q: %w", path, err)
	}
	return namespace, nil
}

// loadingRules returns how to read the kubeconfig, and its path or list of paths; "" means none.
func loadingRules(ctx context.Context, from Address) (*clientcmd.ClientConfigLoadingRules, string) {
	switch len(from.Kubeconfigs) {
	case 0:
		return &clientcmd.ClientConfigLoadingRules{}, ""
	case 1:
		return &clientcmd.ClientConfigLoadingRules{ExplicitPath: from.Kubeconfigs[0]}, from.Kubeconfigs[0]
	}
	logger := klog.FromContext(ctx)
	return &clientcmd.ClientConfigLoadingRules{
		Precedence:       from.Kubeconfigs,
		WarnIfAllMissing: true,
		Warner:           func(err error) { logger.Info("Kubeconfig is not complete", "reason", err.Error()) },
	}, strings.Join(from.Kubeconfigs, string(filepath.ListSeparator))
}

// Limits bound the rate of one client's requests.
type Limits struct {
	// QPS is requests a second, at most MaxQPS; 0 means client-go's default of 5, a negative value means no limit.
	QPS float32
	// Burst is how many may follow each other at once; it must be above zero unless QPS is negative.
	Burst int
}

func (l Limits) validate() error {
	switch {
	case l.QPS != l.QPS || l.QPS > MaxQPS || l.QPS < -MaxQPS: //nolint:gocritic // NaN is the one value that differs from itself
		return fmt.Errorf("QPS must be a number from %.0f to %.0f, not %v", -MaxQPS, MaxQPS, l.QPS)
	case l.QPS >= 0 && l.Burst <= 0:
		return fmt.Errorf("burst must be above zero, not %d", l.Burst)
	}
	return nil
}

// DefaultLimits are the limits of the clients whose rates have flags, for when nobody sets them.
type DefaultLimits struct {
	// Provisioning is for --kube-api-qps and --kube-api-burst, Capacity for --kube-api-capacity-qps and -burst.
	Provisioning, Capacity Limits
}

var (
	// CentralLimits are for the one instance that serves a cluster. API Priority and Fairness guards the API server,
	// and the clients send less while it refuses requests (429).
	CentralLimits = DefaultLimits{Provisioning: Limits{QPS: 50, Burst: 100}, Capacity: Limits{QPS: 10, Burst: 20}}
	// FleetLimits are for instances of which each node has one: what they send adds up.
	FleetLimits = DefaultLimits{Provisioning: Limits{QPS: 5, Burst: 10}, Capacity: Limits{QPS: 1, Burst: 5}}
)

// MaxQPS is the highest rate of requests that Limits take; more is no limit.
const MaxQPS = 1e9

// UserAgent is what the API server's audit log shows of us.
func UserAgent(version string) string {
	if version == "" {
		version = "unknown"
	}
	return fmt.Sprintf("csi-provisioner/%s (%s/%s)", version, runtime.GOOS, runtime.GOARCH)
}

var errNoConfig = errors.New("no rest.Config")
