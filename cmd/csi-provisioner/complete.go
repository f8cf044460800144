package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/features"
	"github.com/csi-sidecars/external-provisioner/pkg/process"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
)

// Complete returns what the process is to do. Call it only after Validate has found nothing; it fails then
// for nothing that an operator wrote.
func (o *Options) Complete(env environment, version string) (Config, error) {
	gates, _, err := features.Resolve(o.gates)
	if err != nil {
		return Config{}, fmt.Errorf("resolve feature gates: %w", err)
	}
	toDriver, toPV, err := o.claimKeys()
	if err != nil {
		return Config{}, fmt.Errorf("resolve keys of labels and annotations: %w", err)
	}
	cfg := Config{
		Version:  version,
		Hostname: env.hostname,

		PodNamespace: process.LeaseNamespace("", env.podNamespace, env.accountNamespace),

		Driver:  DriverConfig{Address: o.csiAddress, Timeout: o.timeout, Timeouts: o.timeouts()},
		Kube:    KubeConfig{Kubeconfigs: o.kubeconfigs(env), Master: o.master, QPS: float32(o.qps), Burst: o.burst},
		Gates:   gates,
		Volumes: o.volumeConfig(),
		Work: WorkConfig{
			RetryStart: o.retryStart, RetryMax: o.retryMax,
			CreateWorkers: int(o.creating()), DeleteWorkers: int(o.deleting()), CloneWorkers: int(o.cloneWorkers),
			MaxCreatesPerSource: int(o.maxPerSource),
			SnapshotSweep:       max(o.snapshotSweep, 0), OperationLeases: o.operationLeases, DrainTimeout: o.drainTimeout,
			QuietEvents: o.quietEvents,
		},
		Election: ElectionConfig{
			Enabled:   o.election,
			Namespace: process.LeaseNamespace(o.electionNamespace, env.podNamespace, env.accountNamespace),
			Pod:       process.PodName(env.podName, env.accountPod.Name, env.hostname), PodUID: env.accountPod.UID,
			LeaseDuration: o.leaseDuration, RenewDeadline: o.renewDeadline, RetryPeriod: o.retryPeriod,
			Labels: o.electionLabels,
		},
		HTTP: HTTPConfig{Address: o.address(), MetricsPath: o.metricsPath, Pprof: o.pprof},
	}
	cfg.Volumes.CreateMetadata, cfg.Volumes.CopyToPV = toDriver, toPV
	if o.capacity {
		cfg.Capacity = CapacityConfig{
			Enabled: true, Namespace: env.namespace, PodName: env.podName, OwnerLevel: o.capacityOwnerLevel,
			Poll: o.capacityPoll, Workers: int(o.capacityWorkers),
			ImmediateBinding: o.capacityImmediate, RespectAllowedTopologies: o.capacityAllowedTopologies,
			QPS: o.capacityQPS, Burst: o.capacityBurst,
		}
	}
	if o.nodeDeployment {
		cfg.Node = NodeConfig{
			Enabled: true, Name: env.nodeName, ImmediateBinding: o.nodeImmediate,
			BaseDelay: o.nodeBaseDelay, MaxDelay: o.nodeMaxDelay, Cleanup: o.nodeCleanup,
		}
	}
	if cfg.Traces, err = o.traceConfig(env, version); err != nil {
		return Config{}, fmt.Errorf("resolve where traces go: %w", err)
	}
	return cfg, nil
}

// creating and deleting are how many claims, and how many PersistentVolumes, are worked on at once.
func (o *Options) creating() uint { return cmp.Or(o.createWorkers, o.workers) }

func (o *Options) deleting() uint { return cmp.Or(o.deleteWorkers, o.workers) }

func (o *Options) timeouts() driver.Timeouts {
	return driver.Timeouts{Create: o.createTimeout, Restore: o.restoreTimeout, Clone: o.cloneTimeout, Delete: o.deleteTimeout}
}

// traceConfig returns nil when no traces are wanted.
func (o *Options) traceConfig(env environment, version string) (*trace.Config, error) {
	if o.otlpEndpoint == "" {
		return nil, nil //nolint:nilnil // not wanted
	}
	endpoint, err := trace.ParseEndpoint(o.otlpEndpoint)
	headers, herr := trace.ParseHeaders(env.otlpHeaders)
	ratio, rerr := trace.ParseRatio(env.traceSampler, env.traceSamplerArg)
	return &trace.Config{
		Endpoint: endpoint, Ratio: ratio, Headers: headers, CAFile: env.otlpCertificate, Version: version, Instance: env.hostname,
	}, errors.Join(err, herr, rerr)
}

func (o *Options) volumeConfig() VolumeConfig {
	namespaces := slices.Clone(o.deletionSecretNamespaces)
	slices.Sort(namespaces)
	namespaces = slices.Compact(namespaces)
	if len(namespaces) == 0 {
		namespaces = nil
	}
	return VolumeConfig{
		NamePrefix: o.namePrefix, NameUUIDLength: min(o.nameUUIDLength, hexDigits),
		DefaultFSType: o.defaultFSType, ExtraCreateMetadata: o.extraCreateMetadata,
		PublishReadonly: o.publishReadonly, PreventModeConversion: o.preventModeConversion,
		StrictTopology: o.strictTopology, ImmediateTopology: o.immediateTopology,
		GrowToSourceSize: o.growToSourceSize, KeepNodeTopology: o.keepNodeTopology,
		DeletionSecretNamespaces: namespaces,
	}
}

// kubeconfigs returns the files in order of precedence: the environment wins over the flag, unless kubeconfigFirst.
func (o *Options) kubeconfigs(env environment) []string {
	if env.kubeconfig != "" && (o.kubeconfig == "" || !o.kubeconfigFirst) {
		return slices.DeleteFunc(filepath.SplitList(env.kubeconfig), func(name string) bool { return name == "" })
	}
	if o.kubeconfig != "" {
		return []string{o.kubeconfig}
	}
	return nil
}

func (o *Options) address() string {
	if o.httpEndpoint != "" {
		return o.httpEndpoint
	}
	return o.metricsAddress
}

// Warnings returns what is accepted but worth a word, one line each.
func (o *Options) Warnings(env environment) []string {
	var all []string
	warnf := func(when bool, format string, args ...any) {
		if when {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	for _, flag := range slices.Sorted(maps.Keys(o.strayBools)) {
		word := o.strayBools[flag]
		warnf(true, "%q after --%s is ignored, and the flag is true: write --%s=%s, or delete it", word, flag, flag, word)
	}
	warnf(env.kubeconfig != "" && o.kubeconfig != "" && !o.kubeconfigFirst, "the environment variable KUBECONFIG (%s) wins over --kubeconfig (%s)", env.kubeconfig, o.kubeconfig)
	gates, notes, _ := features.Resolve(o.gates)
	all = append(all, notes...)
	warnf(gates.ReleaseLeaderElectionOnExit, "feature gate ReleaseLeaderElectionOnExit changes nothing: the lease is always released on a clean stop")
	warnf(o.nameUUIDLength > hexDigits, "--volume-name-uuid-length=%d means 32: a UID has no more digits", o.nameUUIDLength)
	all = append(all, o.keyWarnings()...)
	noCreates, noDeletes := o.creating() == 0, o.deleting() == 0
	warnf(noCreates && noDeletes, "--worker-threads=0: no claim is provisioned and no PersistentVolume deleted")
	warnf(noCreates && !noDeletes, "--worker-threads=0 without --create-threads: no claim is provisioned")
	warnf(noDeletes && !noCreates, "--worker-threads=0 without --delete-threads: no PersistentVolume is deleted")
	warnf(o.cloneWorkers == 0, "--cloning-protection-threads=0: no source of a clone is ever released")
	if o.capacity {
		warnf(o.capacityWorkers == 0, "--capacity-threads=0: no storage capacity is published")
	}
	o.warnNode(warnf)
	o.warnElection(warnf)
	warnf(o.isSet("provisioning-marker-delay"), "--provisioning-marker-delay has no effect: claims are not marked any more, remove it; see --operation-leases")
	warnf(o.metricsAddress != "", "--metrics-address is deprecated: use --http-endpoint=%s", o.metricsAddress)
	warnf(o.pprof && o.address() == "", "--enable-pprof does nothing without --http-endpoint")
	return all
}

// isSet reports whether the flag is on the command line.
func (o *Options) isSet(flag string) bool {
	return slices.ContainsFunc(o.set, func(set string) bool { return strings.HasPrefix(set, "--"+flag+"=") })
}

func (o *Options) warnNode(warnf func(when bool, format string, args ...any)) {
	if o.nodeDeployment {
		warnf(o.election, "--node-deployment with --leader-election: all nodes share one lease, so only one of them works: remove --leader-election")
		warnf(o.nodeMaxDelay < o.nodeBaseDelay, "--node-deployment-max-delay (%s) is below --node-deployment-base-delay (%s): most tries to take a claim do not wait", o.nodeMaxDelay, o.nodeBaseDelay)
	}
	warnf(o.nodeCleanup && !o.nodeDeployment, "--node-deployment-cleanup does nothing without --node-deployment")
}

func (o *Options) warnElection(warnf func(when bool, format string, args ...any)) {
	if !o.election || o.leaseDuration <= o.renewDeadline {
		return
	}
	seconds := int64(o.leaseDuration.Seconds())
	warnf(o.renewDeadline.Seconds() >= float64(seconds), "a lease holds whole seconds: others wait %ds and not %s, which is not above the renew deadline of %s", seconds, o.leaseDuration, o.renewDeadline)
}
