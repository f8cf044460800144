package capacity

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// Which pairs are asked for again after work on a volume.
func TestRefreshAfterVolumes(t *testing.T) {
	t.Parallel()
	term := func(pairs ...string) corev1.NodeSelectorTerm {
		var term corev1.NodeSelectorTerm
		for i := 0; i < len(pairs); i += 2 {
			term.MatchExpressions = append(term.MatchExpressions,
				corev1.NodeSelectorRequirement{Key: pairs[i], Operator: corev1.NodeSelectorOpIn, Values: []string{pairs[i+1]}})
		}
		return term
	}
	affinity := func(terms ...corev1.NodeSelectorTerm) *corev1.VolumeNodeAffinity {
		return &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: terms}}
	}
	fast := []string{"fast host=1,zone=a", "fast host=2,zone=a", "fast host=3,zone=b"}
	for name, tc := range map[string]struct {
		work func(c *Controller)
		want []string
	}{
		"created with the affinity of a segment": {func(c *Controller) { c.VolumeCreated("fast", affinity(term("zone", "a", "host", "1"))) },
			[]string{"fast host=1,zone=a", "slow host=1,zone=a"}},
		"deleted with the affinity of a segment": {func(c *Controller) { c.VolumeDeleted("fast", affinity(term("host", "3", "zone", "b"))) },
			[]string{"fast host=3,zone=b", "slow host=3,zone=b"}},
		"an affinity that is wider than a segment": {func(c *Controller) { c.VolumeCreated("fast", affinity(term("zone", "a"))) },
			[]string{"fast host=1,zone=a", "fast host=2,zone=a", "slow host=1,zone=a", "slow host=2,zone=a"}},
		"two terms": {func(c *Controller) {
			c.VolumeCreated("fast", affinity(term("zone", "a", "host", "1"), term("zone", "b", "host", "3")))
		},
			[]string{"fast host=1,zone=a", "fast host=3,zone=b", "slow host=1,zone=a", "slow host=3,zone=b"}},
		"created without affinity":         {func(c *Controller) { c.VolumeCreated("fast", nil) }, fast},
		"deleted without affinity":         {func(c *Controller) { c.VolumeDeleted("fast", nil) }, fast},
		"an affinity without terms":        {func(c *Controller) { c.VolumeDeleted("fast", affinity()) }, fast},
		"an affinity without requirements": {func(c *Controller) { c.VolumeDeleted("fast", &corev1.VolumeNodeAffinity{}) }, fast},
		"a term that names no segment":     {func(c *Controller) { c.VolumeCreated("fast", affinity(term("rack", "7"))) }, fast},
		"pairs that never go together":     {func(c *Controller) { c.VolumeCreated("fast", affinity(term("zone", "a", "host", "3"))) }, fast},
		"an unusable term among others": {func(c *Controller) {
			unusable := term("zone", "a")
			unusable.MatchExpressions[0].Operator = corev1.NodeSelectorOpExists
			c.VolumeCreated("fast", affinity(unusable, term("zone", "b", "host", "3")))
		}, []string{"fast host=3,zone=b", "slow host=3,zone=b"}},
		"failed":                     {func(c *Controller) { c.CreateFailed("fast") }, fast},
		"failed for a foreign class": {func(c *Controller) { c.CreateFailed("other") }, nil},
		"created without class":      {func(c *Controller) { c.VolumeCreated("", nil) }, nil},
		"many at once": {func(c *Controller) {
			for range 100 {
				c.VolumeCreated("fast", affinity(term("zone", "b", "host", "3")))
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, s *stage) {
				s.classes.classes["slow"] = lateClass("slow")
				s.segments.set = map[topology.Segment]bool{place("a", "1"): true, place("a", "2"): true, place("b", "3"): true}
				s.run()
				s.driver.taken()
				tc.work(s.controller)
				s.settle()
				got := s.driver.taken()
				if name == "many at once" {
					// Two pairs; the one that was with the worker when the rest came is asked for twice.
					if len(got) < 2 || len(got) > 4 {
						t.Errorf("%d calls for 100 volumes, want each of two pairs once, or twice", len(got))
					}
					return
				}
				if diff := cmp.Diff(tc.want, got, equateEmpty); diff != "" {
					t.Errorf("driver calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}
