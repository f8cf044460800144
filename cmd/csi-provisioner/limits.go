package main

import (
	"github.com/spf13/pflag"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
)

// settleLimits lowers rate limits that nobody set. The defaults of the flags are those of the one instance of a
// cluster. They do not count with --node-deployment, where every node sends as much, and where the operator set
// one half of a pair: that half means what it means together with the other default of earlier releases.
func (o *Options) settleLimits(set *pflag.FlagSet) {
	lower := cluster.FleetLimits
	rate, burst := set.Changed("kube-api-qps"), set.Changed("kube-api-burst")
	if o.nodeDeployment || rate || burst {
		if !rate {
			o.qps = float64(lower.Provisioning.QPS)
		}
		if !burst {
			o.burst = lower.Provisioning.Burst
		}
	}
	rate, burst = set.Changed("kube-api-capacity-qps"), set.Changed("kube-api-capacity-burst")
	if o.nodeDeployment || rate || burst {
		if !rate {
			o.capacityQPS = lower.Capacity.QPS
		}
		if !burst {
			o.capacityBurst = lower.Capacity.Burst
		}
	}
}
