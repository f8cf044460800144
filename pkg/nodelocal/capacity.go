package nodelocal

import (
	"github.com/container-storage-interface/spec/lib/go/csi"
)

// Probes returns what to ask the driver for room on this node, one GetCapacity call for each: those requisite
// topologies that hold here, or a single nil, which is no topology, when there is no requirement. Without local
// topology every requisite topology is asked for. None at all means that the node is outside of what is allowed.
func Probes(requirement *csi.TopologyRequirement, local *csi.Topology) []*csi.Topology {
	if requirement == nil {
		return []*csi.Topology{nil}
	}
	var probes []*csi.Topology
	for _, t := range requirement.GetRequisite() {
		if local == nil || holds(t.GetSegments(), local.GetSegments()) {
			probes = append(probes, t)
		}
	}
	return probes
}

func holds(pairs, here map[string]string) bool {
	for key, value := range pairs {
		if v, ok := here[key]; !ok || v != value {
			return false
		}
	}
	return true
}

// Enough reports whether a driver that answers so has room for a volume of that size: enough available, and no
// smaller limit for one volume. A size of zero always fits, also without an answer.
func Enough(requestBytes int64, answer *csi.GetCapacityResponse) bool {
	if requestBytes == 0 {
		return true
	}
	if answer.GetAvailableCapacity() < requestBytes {
		return false
	}
	limit := answer.GetMaximumVolumeSize()
	return limit == nil || limit.GetValue() >= requestBytes
}
