package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Argument sets as charts of drivers have them: each way of writing that the original accepts means here what it means
// there.
func TestArgumentsOfCharts(t *testing.T) {
	t.Parallel()
	env := environment{hostname: "host", nodeName: "n1", namespace: "ns", podName: "pod-0"}
	type facts map[string]any
	for name, tc := range map[string]struct {
		args []string
		want facts
	}{
		"a cloud's block storage": {
			[]string{
				"--csi-address=/csi/csi.sock", "--v=5", "--feature-gates=Topology=true", "--extra-create-metadata", "--leader-election=true",
				"--default-fstype=ext4", "--kube-api-qps=20", "--kube-api-burst=100", "--worker-threads=100", "--retry-interval-max=30m",
			},
			facts{"socket": "/csi/csi.sock", "v": 5, "topology": true, "metadata": true, "election": true, "fs": "ext4", "qps": float32(20), "burst": 100, "creates": 100, "max": 30 * time.Minute},
		},
		"each flag and its value as two arguments": {
			[]string{"-v", "5", "--csi-address", "unix:///csi/csi.sock", "--timeout", "60s", "--feature-gates", "Topology=true", "--worker-threads", "16"},
			facts{"socket": "unix:///csi/csi.sock", "v": 5, "topology": true, "timeout": time.Minute, "creates": 16},
		},
		"the short form of the verbosity": {[]string{"-v=4"}, facts{"v": 4}},
		"the shortest form of it":         {[]string{"-v4"}, facts{"v": 4}},
		"booleans in other words": {
			[]string{"--leader-election=1", "--extra-create-metadata=T", "--strict-topology=TRUE", "--immediate-topology=0", "--prevent-volume-mode-conversion=F"},
			facts{"election": true, "metadata": true, "strict": true, "immediate": false, "prevent": false},
		},
		"a boolean that is taken back": {[]string{"--extra-create-metadata", "--extra-create-metadata=false"}, facts{"metadata": false}},
		"a flag that is given twice":   {[]string{"--timeout=15s", "--timeout=300s", "--v=2", "--v=6"}, facts{"timeout": 5 * time.Minute, "v": 6}},
		"gates with spaces, and an empty one": {
			[]string{"--feature-gates= Topology = false , CrossNamespaceVolumeDataSource=1,"}, facts{"topology": false, "cross": true},
		},
		"gates in several flags":                   {[]string{"--feature-gates=Topology=false", "--feature-gates=CrossNamespaceVolumeDataSource=true"}, facts{"topology": false, "cross": true}},
		"no gates":                                 {[]string{"--feature-gates="}, facts{"topology": true}},
		"gates that are gone":                      {[]string{"--feature-gates=HonorPVReclaimPolicy=true,Topology=true"}, facts{"topology": true}},
		"an old address":                           {[]string{"--metrics-address=:8080"}, facts{"http": ":8080"}},
		"a new address":                            {[]string{"--http-endpoint=0.0.0.0:8080", "--metrics-path=/m"}, facts{"http": "0.0.0.0:8080"}},
		"an address of version 6":                  {[]string{"--http-endpoint=[::]:8080"}, facts{"http": "[::]:8080"}},
		"an empty address, as a template makes it": {[]string{"--http-endpoint=", "--kubeconfig=", "--default-fstype="}, facts{"http": "", "fs": ""}},
		"a DaemonSet with storage capacity": {
			[]string{
				"--node-deployment=true", "--enable-capacity=true", "--capacity-ownerref-level=0", "--capacity-poll-interval=30s", "--strict-topology=true",
				"--immediate-topology=false", "--node-deployment-immediate-binding=false", "--timeout=15s", "--volume-name-prefix=pvc", "--volume-name-uuid-length=10",
			},
			facts{"node": "n1", "capacity": true, "level": 0, "strict": true, "immediate": false, "timeout": 15 * time.Second, "digits": 10},
		},
		"a long timeout":                   {[]string{"--timeout=10h", "--retry-interval-start=500ms"}, facts{"timeout": 10 * time.Hour, "start": 500 * time.Millisecond}},
		"durations of the election":        {[]string{"--leader-election", "--leader-election-lease-duration=30s", "--leader-election-renew-deadline=20s", "--leader-election-retry-period=10s", "--leader-election-namespace=kube-system"}, facts{"election": true, "lease": 30 * time.Second, "lease namespace": "kube-system"}},
		"numbers in other bases":           {[]string{"--worker-threads=0x10", "--kube-api-burst=0b1010"}, facts{"creates": 16, "burst": 10}},
		"a rate with a fraction, no limit": {[]string{"--kube-api-qps=-1"}, facts{"qps": float32(-1)}},
		"an end of the flags":              {[]string{"--timeout=1m", "--"}, facts{"timeout": time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := parse(t, tc.args...)
			cfg := complete(t, env, tc.args...)
			all := facts{
				"socket": cfg.Driver.Address, "timeout": cfg.Driver.Timeout, "v": int(o.logging.Verbosity), "http": cfg.HTTP.Address,
				"topology": cfg.Gates.Topology, "cross": cfg.Gates.CrossNamespaceVolumeDataSource,
				"metadata": cfg.Volumes.ExtraCreateMetadata, "fs": cfg.Volumes.DefaultFSType, "strict": cfg.Volumes.StrictTopology,
				"immediate": cfg.Volumes.ImmediateTopology, "prevent": cfg.Volumes.PreventModeConversion, "digits": cfg.Volumes.NameUUIDLength,
				"election": cfg.Election.Enabled, "lease": cfg.Election.LeaseDuration, "lease namespace": cfg.Election.Namespace,
				"qps": cfg.Kube.QPS, "burst": cfg.Kube.Burst, "creates": cfg.Work.CreateWorkers, "start": cfg.Work.RetryStart, "max": cfg.Work.RetryMax,
				"node": cfg.Node.Name, "capacity": cfg.Capacity.Enabled, "level": cfg.Capacity.OwnerLevel,
			}
			for fact, want := range tc.want {
				if diff := cmp.Diff(want, all[fact]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", fact, diff)
				}
			}
		})
	}
}

// A variable that the kubelet could not expand stays as it is written, and is named.
func TestAVariableThatIsNotExpanded(t *testing.T) {
	t.Parallel()
	if err := parse(t, "--csi-address=$(ADDRESS)").Validate(environment{}); err == nil || !strings.HasPrefix(err.Error(), "--csi-address:") {
		t.Errorf("Validate = %v, want a complaint about --csi-address", err)
	}
}
