package topology

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Affinity returns the node affinity for a volume that a driver says is accessible from these topologies: a
// term for each of them in their order, its expressions sorted by key. Topologies without segments and
// repeated ones are left out; nil when none remains.
func Affinity(accessible []*csi.Topology) *corev1.VolumeNodeAffinity {
	var terms []corev1.NodeSelectorTerm
	var seen []Segment
	for _, t := range accessible {
		s := SegmentOf(t.GetSegments())
		if s.IsEmpty() || slices.Contains(seen, s) {
			continue
		}
		seen = append(seen, s)
		var term corev1.NodeSelectorTerm
		for key, value := range s.All() {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{
				Key: key, Operator: corev1.NodeSelectorOpIn, Values: []string{value},
			})
		}
		terms = append(terms, term)
	}
	if len(terms) == 0 {
		return nil
	}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
}

// Accessible reports whether a volume with this affinity is accessible from a node whose driver reports local
// as its topology. A nil local, or an affinity that requires nothing, makes every volume accessible. It returns
// an error when no term matches and one of them cannot be understood.
func Accessible(affinity *corev1.VolumeNodeAffinity, local *csi.Topology) (bool, error) {
	if local == nil || affinity == nil || affinity.Required == nil {
		return true, nil
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: local.GetSegments()}}
	matches, err := nodeaffinity.NewLazyErrorNodeSelector(affinity.Required).Match(node)
	if err != nil {
		return false, fmt.Errorf("check node affinity of the volume: %w", err)
	}
	return matches, nil
}
