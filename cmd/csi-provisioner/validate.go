package main

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/features"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// complaints collects what is wrong, in the order of the usage text.
type complaints []error

func (c *complaints) addf(format string, args ...any) { *c = append(*c, fmt.Errorf(format, args...)) }

func (c *complaints) positive(flag string, d time.Duration) {
	if d <= 0 {
		c.addf("--%s must be above zero, is %s", flag, d)
	}
}

func (c *complaints) notNegative(flag string, d time.Duration) {
	if d < 0 {
		c.addf("--%s must not be negative, is %s", flag, d)
	}
}

func (c *complaints) count(flag string, n uint) {
	if n > math.MaxInt32 {
		c.addf("--%s is too large: %d", flag, n)
	}
}

// each adds what err joins; nil is no complaint.
func (c *complaints) each(flag string, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			c.addf("--%s: %w", flag, one)
		}
	} else if err != nil {
		c.addf("--%s: %w", flag, err)
	}
}

// Validate returns every complaint about flags and environment in one joined error, or nil. It touches neither
// network nor files.
func (o *Options) Validate(env environment) error {
	var c complaints
	o.checkBasics(&c)
	o.checkVolumes(&c)
	o.checkWork(&c)
	if o.capacity {
		o.checkCapacity(&c, env)
	}
	if o.nodeDeployment {
		o.checkNode(&c, env)
	}
	if o.election {
		o.checkElection(&c)
	}
	if o.election || o.nodeDeployment && o.nodeCleanup {
		o.checkLease(&c)
	}
	o.checkHTTP(&c)
	o.checkTraces(&c, env)
	for _, err := range logsapi.Validate(o.logging, nil, nil) {
		c.addf("logging configuration: %w", err)
	}
	return errors.Join(c...)
}

func (o *Options) checkBasics(c *complaints) {
	if err := driver.CheckAddress(o.csiAddress); err != nil {
		c.addf("--csi-address: %w", err)
	}
	checkRate(c, "kube-api", o.qps, o.burst)
	_, _, err := features.Resolve(o.gates)
	c.each("feature-gates", err)
}

func checkRate(c *complaints, prefix string, qps float64, burst int) {
	switch {
	case math.IsNaN(qps) || math.Abs(qps) > cluster.MaxQPS:
		c.addf("--%s-qps must be a number from %.0f to %.0f, is %v", prefix, -cluster.MaxQPS, cluster.MaxQPS, qps)
	case qps > 0 && burst <= 0:
		c.addf("--%s-burst must be above zero while --%s-qps is, is %d", prefix, prefix, burst)
	case qps == 0 && burst < 0:
		c.addf("--%s-burst must not be negative, is %d", prefix, burst)
	}
}

// wholeUUID is the length of a claim's UID with its dashes, hexDigits without.
const wholeUUID, hexDigits = 36, 32

func (o *Options) checkVolumes(c *complaints) {
	length := o.nameUUIDLength
	if length == 0 || length < -1 {
		c.addf("--volume-name-uuid-length must be -1 or 1 to 32, is %d", length)
		length = -1
	}
	digits := wholeUUID
	if length > 0 {
		digits = min(length, hexDigits)
	}
	name := o.namePrefix + "-" + strings.Repeat("0", digits)
	if o.namePrefix == "" {
		c.addf("--volume-name-prefix must not be empty")
	} else if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
		c.addf("--volume-name-prefix=%s makes names that are not DNS-1123 subdomains, like %s: %s", o.namePrefix, name, strings.Join(problems, "; "))
	}
	for _, namespace := range o.deletionSecretNamespaces {
		if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
			c.addf("--deletion-secret-namespaces: %q is not a namespace: %s", namespace, strings.Join(problems, "; "))
		}
	}
	for _, keys := range o.keyFlags() {
		_, err := volume.ParseKeys(keys.patterns)
		c.each(keys.flag, err)
	}
}

func (o *Options) checkWork(c *complaints) {
	c.positive("timeout", o.timeout)
	for _, kind := range []struct {
		flag  string
		value time.Duration
	}{
		{"create-timeout", o.createTimeout}, {"restore-timeout", o.restoreTimeout}, {"clone-timeout", o.cloneTimeout}, {"delete-timeout", o.deleteTimeout},
		{"shutdown-drain-timeout", o.drainTimeout},
	} {
		c.notNegative(kind.flag, kind.value)
	}
	c.positive("retry-interval-start", o.retryStart)
	c.positive("retry-interval-max", o.retryMax)
	for _, threads := range []struct {
		flag  string
		value uint
	}{
		{"worker-threads", o.workers}, {"create-threads", o.createWorkers}, {"delete-threads", o.deleteWorkers}, {"max-creates-per-source", o.maxPerSource},
		{"cloning-protection-threads", o.cloneWorkers},
	} {
		c.count(threads.flag, threads.value)
	}
}

func (o *Options) checkCapacity(c *complaints, env environment) {
	if env.namespace == "" {
		c.addf("--enable-capacity needs the environment variable NAMESPACE: set it from the field metadata.namespace (valueFrom.fieldRef)")
	}
	if o.capacityOwnerLevel >= 0 && env.podName == "" {
		c.addf("--enable-capacity needs the environment variable POD_NAME: set it from the field metadata.name (valueFrom.fieldRef), or have no owner with --capacity-ownerref-level=-1")
	}
	c.positive("capacity-poll-interval", o.capacityPoll)
	c.count("capacity-threads", o.capacityWorkers)
	checkRate(c, "kube-api-capacity", float64(o.capacityQPS), o.capacityBurst)
}

func (o *Options) checkNode(c *complaints, env environment) {
	if env.nodeName == "" {
		c.addf("--node-deployment needs the environment variable NODE_NAME: set it from the field spec.nodeName (valueFrom.fieldRef)")
	}
	c.notNegative("node-deployment-base-delay", o.nodeBaseDelay)
	c.notNegative("node-deployment-max-delay", o.nodeMaxDelay)
}

func (o *Options) checkElection(c *complaints) {
	if o.leaseDuration < time.Second || o.leaseDuration <= o.renewDeadline || o.retryPeriod <= 0 ||
		o.renewDeadline <= time.Duration(leaderelection.JitterFactor*float64(o.retryPeriod)) {
		c.addf("--leader-election-lease-duration (%s) must be at least 1s and above --leader-election-renew-deadline (%s), which must be above 1.2 times --leader-election-retry-period (%s), which must be above zero",
			o.leaseDuration, o.renewDeadline, o.retryPeriod)
	}
}

// checkLease is about where a lease is and what it looks like, that of the leader and that of --node-deployment-cleanup.
func (o *Options) checkLease(c *complaints) {
	if o.electionNamespace != "" {
		if problems := validation.IsDNS1123Label(o.electionNamespace); len(problems) > 0 {
			c.addf("--leader-election-namespace: %q is not a namespace: %s", o.electionNamespace, strings.Join(problems, "; "))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(o.electionLabels)) {
		value := o.electionLabels[key]
		if problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(problems) > 0 {
			c.addf("--leader-election-labels: %s:%s is not a label: %s", key, value, strings.Join(problems, "; "))
		}
	}
}

func (o *Options) checkHTTP(c *complaints) {
	if o.httpEndpoint != "" && o.metricsAddress != "" {
		c.addf("--http-endpoint=%s and --metrics-address=%s exclude each other: remove --metrics-address, which is deprecated", o.httpEndpoint, o.metricsAddress)
	}
	for _, address := range []struct{ flag, value string }{{"http-endpoint", o.httpEndpoint}, {"metrics-address", o.metricsAddress}} {
		if address.value == "" {
			continue
		}
		if problem := addressProblem(address.value); problem != "" {
			c.addf("--%s=%s %s", address.flag, address.value, problem)
		}
	}
	if o.httpEndpoint != "" || o.metricsAddress != "" {
		if problem := metricsPathProblem(o.metricsPath, o.pprof); problem != "" {
			c.addf("--metrics-path=%s %s", o.metricsPath, problem)
		}
	}
}

func (o *Options) checkTraces(c *complaints, env environment) {
	if o.otlpEndpoint == "" {
		return
	}
	if _, err := trace.ParseEndpoint(o.otlpEndpoint); err != nil {
		c.addf("--otlp-endpoint %w", err)
	}
	if _, err := trace.ParseHeaders(env.otlpHeaders); err != nil {
		c.addf("the environment variable OTEL_EXPORTER_OTLP_HEADERS %w", err)
	}
	if _, err := trace.ParseRatio(env.traceSampler, env.traceSamplerArg); err != nil {
		c.addf("the environment variable %w", err)
	}
}

func addressProblem(address string) string {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "must be host:port or :port"
	}
	if number, err := strconv.Atoi(port); err == nil && (number < 0 || number > math.MaxUint16) {
		return "has a port that is not between 0 and 65535"
	}
	return ""
}

// reservedPaths are served by the same server; the ones of pprof only on request.
var (
	reservedPaths      = []string{"/healthz", "/healthz/leader-election", "/readyz"}
	reservedPprofPaths = []string{"/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/profile", "/debug/pprof/symbol", "/debug/pprof/trace"}
)

func metricsPathProblem(name string, pprof bool) string {
	switch {
	case !strings.HasPrefix(name, "/"):
		return `must begin with "/"`
	case slices.Contains(reservedPaths, name), pprof && slices.Contains(reservedPprofPaths, name):
		return "is taken by another page of the same server"
	case path.Clean(name) != name && path.Clean(name)+"/" != name, strings.ContainsAny(name, "{}?# \t\r\n"):
		return "is not a clean path"
	}
	return ""
}
