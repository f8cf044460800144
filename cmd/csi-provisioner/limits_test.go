package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
)

// What the operator sets counts, also when it is an old default; only what nobody sets is new.
func TestDefaultRateLimits(t *testing.T) {
	t.Parallel()
	limits := func(qps float32, burst int, capacityQPS float32, capacityBurst int) cluster.DefaultLimits {
		return cluster.DefaultLimits{
			Provisioning: cluster.Limits{QPS: qps, Burst: burst}, Capacity: cluster.Limits{QPS: capacityQPS, Burst: capacityBurst},
		}
	}
	for name, tc := range map[string]struct {
		args []string
		want cluster.DefaultLimits
	}{
		"nothing set":                           {nil, limits(50, 100, 10, 20)},
		"nothing set, an instance on each node": {[]string{"--node-deployment"}, limits(5, 10, 1, 5)},
		"the flag said false":                   {[]string{"--node-deployment=false"}, limits(50, 100, 10, 20)},
		"the old defaults": {
			[]string{"--kube-api-qps=5", "--kube-api-burst=10", "--kube-api-capacity-qps=1", "--kube-api-capacity-burst=5"}, limits(5, 10, 1, 5),
		},
		"an old rate alone has its old burst": {[]string{"--kube-api-qps=5", "--kube-api-capacity-qps=1"}, limits(5, 10, 1, 5)},
		"a burst alone has its old rate":      {[]string{"--kube-api-burst=30", "--kube-api-capacity-burst=8"}, limits(5, 30, 1, 8)},
		"a new default said aloud":            {[]string{"--kube-api-qps=50"}, limits(50, 10, 10, 20)},
		"one pair does not touch the other":   {[]string{"--kube-api-capacity-qps=3"}, limits(50, 100, 3, 5)},
		"zero is set, too":                    {[]string{"--kube-api-qps=0"}, limits(0, 10, 10, 20)},
		"set, an instance on each node": {
			[]string{"--kube-api-qps=70", "--node-deployment", "--kube-api-capacity-burst=9"}, limits(70, 10, 1, 9),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := complete(t, environment{nodeName: "n1", namespace: "ns", podName: "pod"}, append(tc.args, "--enable-capacity")...)
			got := limits(cfg.Kube.QPS, cfg.Kube.Burst, cfg.Capacity.QPS, cfg.Capacity.Burst)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
		})
	}
}
