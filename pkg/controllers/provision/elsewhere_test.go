package provision

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// Drivers that keep volumes on nodes may use one handle on several nodes: a PersistentVolume that this node cannot access does
// not keep the volume of one that it can.
func TestAHandleOfAnotherNodeIsAnotherVolume(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		node string
		want int
	}{
		"of another node": {node: "there", want: 1},
		"of this node":    {node: "here", want: 0},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, onNode, func(t *testing.T, w *world) {
				other := fixture.PV("other").UID("other").Driver(driverName).Handle("handle-pv").Phase(corev1.VolumeBound).Obj()
				other.Spec.NodeAffinity = affinity(tc.node)
				pv := released().Obj()
				pv.Spec.NodeAffinity = affinity("here")
				w.put(other)
				w.put(pv)
				w.pass(time.Second)
				if got := len(w.driver.deleteCalls()); got != tc.want {
					t.Errorf("%d DeleteVolume calls, want %d", got, tc.want)
				}
			})
		})
	}
}

func affinity(host string) *corev1.VolumeNodeAffinity {
	term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
		{Key: "host", Operator: corev1.NodeSelectorOpIn, Values: []string{host}},
	}}
	return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}}
}
