package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/csi-sidecars/external-provisioner/pkg/driver"
	"github.com/csi-sidecars/external-provisioner/pkg/features"
	"github.com/csi-sidecars/external-provisioner/pkg/process"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s, to be rewritten with -update (-want +got):\n%s", name, diff)
	}
}

// parse returns options from args, and fails the test when they cannot be read.
func parse(t *testing.T, args ...string) *Options {
	t.Helper()
	o := NewOptions()
	if err := o.Parse(args); err != nil {
		t.Fatalf("parse %q: %v", args, err)
	}
	return o
}

func TestHelpIsAsRecorded(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := writeHelp(&out); err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/help.golden", out.String())
}

// contractFlags are the 51 flags that a drop-in has, with the defaults that it has; only the rate limits are higher.
var contractFlags = map[string]string{
	"csi-address": "/run/csi/socket", "kubeconfig": "", "master": "", "kube-api-qps": "50", "kube-api-burst": "100", "version": "false",
	"automaxprocs": "", "feature-gates": "",
	"volume-name-prefix": "pvc", "volume-name-uuid-length": "-1", "default-fstype": "", "extra-create-metadata": "false",
	"controller-publish-readonly": "false", "prevent-volume-mode-conversion": "true", "strict-topology": "false", "immediate-topology": "true",
	"timeout": "10s", "retry-interval-start": "1s", "retry-interval-max": "5m0s", "worker-threads": "100", "cloning-protection-threads": "1",
	"capacity-threads": "1", "snapshot-orphan-sweep-interval": "5m0s",
	"enable-capacity": "false", "capacity-ownerref-level": "1", "capacity-poll-interval": "1m0s", "capacity-for-immediate-binding": "false",
	"kube-api-capacity-qps": "10", "kube-api-capacity-burst": "20",
	"node-deployment": "false", "node-deployment-immediate-binding": "true", "node-deployment-base-delay": "20s", "node-deployment-max-delay": "1m0s",
	"leader-election": "false", "leader-election-namespace": "", "leader-election-lease-duration": "15s", "leader-election-renew-deadline": "10s",
	"leader-election-retry-period": "5s", "leader-election-labels": "",
	"http-endpoint": "", "metrics-address": "", "metrics-path": "/metrics", "enable-pprof": "false",
	"v": "0", "vmodule": "", "logging-format": "text", "log-flush-frequency": "5s", "log-text-split-stream": "false",
	"log-json-split-stream": "false", "log-text-info-buffer-size": "0", "log-json-info-buffer-size": "0",
}

// ourFlags are the ones beyond the contract.
var ourFlags = map[string]string{
	"grow-to-source-size": "false", "keep-node-topology": "false", "deletion-secret-namespaces": "[]",
	"operation-leases": "true", "provisioning-marker-delay": "0s", "shutdown-drain-timeout": "20s", "capacity-respect-allowed-topologies": "false",
	"node-deployment-cleanup":     "false",
	"create-metadata-annotations": "[]", "create-metadata-labels": "[]", "pv-copy-annotations": "[]", "pv-copy-labels": "[]",
	"create-threads": "0", "delete-threads": "0", "max-creates-per-source": "0",
	"create-timeout": "0s", "restore-timeout": "0s", "clone-timeout": "0s", "delete-timeout": "0s",
	"otlp-endpoint": "", "quiet-events": "false",
}

func TestFlagsAreThoseOfTheContract(t *testing.T) {
	t.Parallel()
	if len(contractFlags) != 51 {
		t.Errorf("%d flags in the table of the contract, want 51", len(contractFlags))
	}
	var help bytes.Buffer
	if err := writeHelp(&help); err != nil {
		t.Fatal(err)
	}
	for _, g := range NewOptions().groups() {
		g.flags.VisitAll(func(f *pflag.Flag) {
			want, ok := contractFlags[f.Name]
			if !ok {
				want, ok = ourFlags[f.Name]
			}
			if !ok {
				t.Errorf("flag --%s is in no table", f.Name)
			}
			if f.DefValue != want {
				t.Errorf("--%s defaults to %q, want %q", f.Name, f.DefValue, want)
			}
			if f.Usage == "" {
				t.Errorf("--%s has no usage", f.Name)
			}
			if (f.Shorthand != "") != (f.Name == "v") {
				t.Errorf("--%s has the short form %q", f.Name, f.Shorthand)
			}
		})
	}
	for _, table := range []map[string]string{contractFlags, ourFlags} {
		for name := range table {
			line := regexp.MustCompile(`(?m)^  (-v, )?--` + regexp.QuoteMeta(name) + `( |$)`)
			if !line.MatchString(help.String()) {
				t.Errorf("--%s does not stand in the help", name)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args []string
		want []string // phrases of the one line
	}{
		"an unknown flag":                         {[]string{"--nosuch"}, []string{"unknown flag: --nosuch"}},
		"a misspelt flag, with a suggestion":      {[]string{"--csi-sddress=/x"}, []string{"--csi-sddress", "did you mean --csi-address?"}},
		"an underscore, with a suggestion":        {[]string{"--worker_threads=1"}, []string{"did you mean --worker-threads?"}},
		"another case, with a suggestion":         {[]string{"--Timeout=1s"}, []string{"did you mean --timeout?"}},
		"one dash, with the right form":           {[]string{"-csi-address=/x"}, []string{"-csi-address", "use two dashes: --csi-address"}},
		"a removed flag, with its replacement":    {[]string{"--provisioner=x"}, []string{"unknown flag: --provisioner", "the driver tells its name"}},
		"the old timeout":                         {[]string{"--connection-timeout=1s"}, []string{"--timeout"}},
		"the old election":                        {[]string{"--enable-leader-election"}, []string{"use --leader-election"}},
		"the old election type":                   {[]string{"--leader-election-type=leases"}, []string{"--leader-election"}},
		"an interim spelling":                     {[]string{"--extraCreateMetadata"}, []string{"use --extra-create-metadata"}},
		"another interim spelling":                {[]string{"--defaultFSType=ext4"}, []string{"use --default-fstype"}},
		"the old capacity mode":                   {[]string{"--capacity-controller-deployment-mode=central"}, []string{"--enable-capacity"}},
		"a flag of the old logger":                {[]string{"--alsologtostderr"}, []string{"unknown flag: --alsologtostderr", "--logging-format"}},
		"a flag of the old logger with a word":    {[]string{"--log_dir=/x"}, []string{"--vmodule"}},
		"a flag of the old logger with one dash":  {[]string{"-logtostderr"}, []string{"-logtostderr", "--logging-format"}},
		"a negative number of threads":            {[]string{"--worker-threads=-1"}, []string{"worker-threads", "-1"}},
		"a duration without a unit":               {[]string{"--timeout=10"}, []string{"timeout", "missing unit"}},
		"a gate that is no bool":                  {[]string{"--feature-gates=Topology=maybe"}, []string{"feature-gates", "Topology=maybe"}},
		"a gate without a value":                  {[]string{"--feature-gates=Topology"}, []string{"missing bool value for Topology"}},
		"a label without a colon":                 {[]string{"--leader-election-labels=a=b"}, []string{"leader-election-labels", "key:value"}},
		"a label with two colons":                 {[]string{"--leader-election-labels=a:b:c"}, []string{"key:value"}},
		"no labels":                               {[]string{"--leader-election-labels="}, []string{"key:value"}},
		"a bool that is none":                     {[]string{"--leader-election=yes"}, []string{"leader-election"}},
		"a flag without its value":                {[]string{"--timeout"}, []string{"needs an argument", "--timeout"}},
		"--automaxprocs with a word":              {[]string{"--automaxprocs=many"}, []string{"automaxprocs", "true or false"}},
		"--version does not save what is unknown": {[]string{"--version", "--nosuch"}, []string{"--nosuch"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := NewOptions().Parse(tc.args)
			if err == nil || errors.Is(err, pflag.ErrHelp) {
				t.Fatalf("Parse(%q) = %v, want an error", tc.args, err)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has more than one line: %q", err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not mention %q", err, want)
				}
			}
		})
	}
}

func TestParseGrammar(t *testing.T) {
	t.Parallel()
	o := parse(t, "--timeout", "3s", "-v4", "--worker-threads=0x10", "--capacity-threads=010", "--retry-interval-start=1s", "--retry-interval-start=2s",
		"--strict-topology", "--immediate-topology=F", "--feature-gates=Topology=true", "--feature-gates=AllAlpha=1",
		"--leader-election-labels=a:b", "--leader-election-labels=c:,d:e", "--automaxprocs=", "--deletion-secret-namespaces=b,a", "--deletion-secret-namespaces=a",
		"run", "", "--")
	got := map[string]any{
		"timeout": o.timeout, "v": uint32(o.logging.Verbosity), "workers": o.workers, "capacity": o.capacityWorkers, "start": o.retryStart,
		"strict": o.strictTopology, "immediate": o.immediateTopology, "gates": o.gates.String(), "labels": o.electionLabels.String(),
		"maxprocs": o.setMaxProcs, "namespaces": o.volumeConfig().DeletionSecretNamespaces,
	}
	want := map[string]any{
		"timeout": 3 * time.Second, "v": uint32(4), "workers": uint(16), "capacity": uint(8), "start": 2 * time.Second,
		"strict": true, "immediate": false, "gates": "AllAlpha=true,Topology=true", "labels": "a:b,c:,d:e",
		"maxprocs": true, "namespaces": []string{"a", "b"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
	if o := parse(t, "--automaxprocs", "--automaxprocs=false"); o.setMaxProcs {
		t.Error("--automaxprocs=false did not undo --automaxprocs")
	}
	for _, arg := range []string{"-h", "--help"} {
		if err := NewOptions().Parse([]string{"--strict-topology", arg, "--nosuch"}); !errors.Is(err, pflag.ErrHelp) {
			t.Errorf("Parse(%s) = %v, want ErrHelp", arg, err)
		}
	}
}

func complete(t *testing.T, env environment, args ...string) Config {
	t.Helper()
	o := parse(t, args...)
	if err := o.Validate(env); err != nil {
		t.Fatal(err)
	}
	cfg, err := o.Complete(env, "v1")
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// The whole default Config, so that a changed default shows.
func TestDefaultConfig(t *testing.T) {
	t.Parallel()
	want := Config{
		Version: "v1", Hostname: "host", PodNamespace: "default",
		Driver: DriverConfig{Address: "/run/csi/socket", Timeout: 10 * time.Second},
		Kube:   KubeConfig{QPS: 50, Burst: 100},
		Gates:  features.Gates{Topology: true, VolumeAttributesClass: true},
		Volumes: VolumeConfig{
			NamePrefix: "pvc", NameUUIDLength: -1, PreventModeConversion: true, ImmediateTopology: true,
		},
		Work: WorkConfig{
			RetryStart: time.Second, RetryMax: 5 * time.Minute, CreateWorkers: 100, DeleteWorkers: 100, CloneWorkers: 1,
			SnapshotSweep: 5 * time.Minute, OperationLeases: true, DrainTimeout: 20 * time.Second,
		},
		Election: ElectionConfig{
			Namespace: "default", Pod: "host",
			LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 5 * time.Second,
		},
		HTTP: HTTPConfig{MetricsPath: "/metrics"},
	}
	if diff := cmp.Diff(want, complete(t, environment{hostname: "host"})); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
}

func TestCompleteReadsEnvironmentAndFlags(t *testing.T) {
	t.Parallel()
	env := environment{
		kubeconfig: "/a:/c", nodeName: "n1", namespace: "ns", podName: "pod.0", podNamespace: "podns",
		hostname: "host", accountNamespace: "accountns", accountPod: process.Pod{Name: "tokenpod", UID: "u"},
	}
	cfg := complete(t, env, "--kubeconfig=/b", "--csi-address=/x", "--metrics-address=:1", "--node-deployment", "--enable-capacity",
		"--volume-name-uuid-length=40", "--snapshot-orphan-sweep-interval=-1s")
	got := map[string]any{
		"kubeconfig": cfg.Kube.Kubeconfigs, "socket": cfg.Driver.Address, "address": cfg.HTTP.Address, "node": cfg.Node.Name,
		"namespace": cfg.Capacity.Namespace, "pod": cfg.Capacity.PodName, "holder": cfg.Election.Pod, "pod UID": cfg.Election.PodUID,
		"lease namespace": cfg.Election.Namespace, "digits": cfg.Volumes.NameUUIDLength, "sweep": cfg.Work.SnapshotSweep,
	}
	want := map[string]any{
		"kubeconfig": []string{"/a", "/c"}, "socket": "/x", "address": ":1", "node": "n1", "namespace": "ns", "pod": "pod.0",
		"holder": "pod-0", "pod UID": "u", "lease namespace": "podns", "digits": 32, "sweep": time.Duration(0),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	capacity := CapacityConfig{Enabled: true, Namespace: "ns", PodName: "pod.0", OwnerLevel: 1, Poll: time.Minute, Workers: 1, QPS: 1, Burst: 5}
	if diff := cmp.Diff(capacity, cfg.Capacity); diff != "" {
		t.Errorf("capacity (-want +got):\n%s", diff)
	}
	volumes := complete(t, environment{}, "--create-metadata-annotations=b/*,a", "--create-metadata-labels=c", "--pv-copy-annotations=d", "--pv-copy-labels=e,e").Volumes
	gotKeys := []volume.ClaimKeys{volumes.CreateMetadata, volumes.CopyToPV}
	wantKeys := []volume.ClaimKeys{{Annotations: volume.Keys{"a", "b/*"}, Labels: volume.Keys{"c"}}, {Annotations: volume.Keys{"d"}, Labels: volume.Keys{"e"}}}
	if diff := cmp.Diff(wantKeys, gotKeys); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	work := complete(t, environment{}, "--worker-threads=7", "--delete-threads=3", "--max-creates-per-source=2").Work
	if work.CreateWorkers != 7 || work.DeleteWorkers != 3 || work.MaxCreatesPerSource != 2 {
		t.Errorf("work %+v, want 7 for creates, 3 for deletes, 2 from a source", work)
	}
	timeouts := driver.Timeouts{Create: time.Second, Restore: 2 * time.Second, Clone: 3 * time.Second, Delete: 4 * time.Second}
	if cfg := complete(t, environment{}, "--create-timeout=1s", "--restore-timeout=2s", "--clone-timeout=3s", "--delete-timeout=4s"); cfg.Driver.Timeouts != timeouts {
		t.Errorf("timeouts %v, want %v", cfg.Driver.Timeouts, timeouts)
	}
	env = environment{hostname: "host", otlpHeaders: "api-key=x", otlpCertificate: "/ca.crt", traceSampler: "parentbased_traceidratio", traceSamplerArg: "0.1"}
	traces := &trace.Config{
		Endpoint: trace.Endpoint{Target: "c:4317", TLS: true}, Ratio: 0.1, Headers: map[string]string{"api-key": "x"}, CAFile: "/ca.crt",
		Version: "v1", Instance: "host",
	}
	if diff := cmp.Diff(traces, complete(t, env, "--otlp-endpoint=https://c:4317").Traces); diff != "" {
		t.Errorf("traces (-want +got):\n%s", diff)
	}
	if cfg := complete(t, environment{}, "--kubeconfig=/b"); !slices.Equal(cfg.Kube.Kubeconfigs, []string{"/b"}) {
		t.Errorf("kubeconfigs %q, want the flag's", cfg.Kube.Kubeconfigs)
	}
	if cfg := complete(t, environment{nodeName: "n1"}); cfg.Node.Name != "" {
		t.Errorf("node %q, want none outside of node mode", cfg.Node.Name)
	}
}
