package topology

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func expression(key string, op corev1.NodeSelectorOperator, values ...string) corev1.NodeSelectorRequirement {
	return corev1.NodeSelectorRequirement{Key: key, Operator: op, Values: values}
}

func affinityOf(terms ...[]corev1.NodeSelectorRequirement) *corev1.VolumeNodeAffinity {
	selector := &corev1.NodeSelector{}
	for _, expressions := range terms {
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, corev1.NodeSelectorTerm{MatchExpressions: expressions})
	}
	return &corev1.VolumeNodeAffinity{Required: selector}
}

type expressions = []corev1.NodeSelectorRequirement

func TestAffinity(t *testing.T) {
	t.Parallel()
	const in = corev1.NodeSelectorOpIn
	for name, tc := range map[string]struct {
		accessible []*csi.Topology
		want       *corev1.VolumeNodeAffinity
	}{
		"nothing":                        {nil, nil},
		"an empty list":                  {[]*csi.Topology{}, nil},
		"R8: only one without segments":  {[]*csi.Topology{{}}, nil},
		"R8: only several without":       {[]*csi.Topology{{Segments: map[string]string{}}, nil}, nil},
		"one, its keys sorted":           {[]*csi.Topology{one("zone=a,host=h").CSI()}, affinityOf(expressions{expression("host", in, "h"), expression("zone", in, "a")})},
		"several, in the driver's order": {[]*csi.Topology{one("zone=b").CSI(), one("zone=a").CSI()}, affinityOf(expressions{expression("zone", in, "b")}, expressions{expression("zone", in, "a")})},
		"one without segments among":     {[]*csi.Topology{one("zone=b").CSI(), {}, one("zone=a").CSI()}, affinityOf(expressions{expression("zone", in, "b")}, expressions{expression("zone", in, "a")})},
		"repeated":                       {[]*csi.Topology{one("zone=b").CSI(), one("zone=b").CSI()}, affinityOf(expressions{expression("zone", in, "b")})},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, Affinity(tc.accessible)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestAccessible(t *testing.T) {
	t.Parallel()
	const in = corev1.NodeSelectorOpIn
	here := one("host=h1,zone=a").CSI()
	for name, tc := range map[string]struct {
		affinity *corev1.VolumeNodeAffinity
		local    *csi.Topology
		want     bool
		wantErr  bool
	}{
		"the node has no topology":       {affinityOf(expressions{expression("zone", in, "b")}), nil, true, false},
		"the volume has no affinity":     {nil, here, true, false},
		"nor requires anything":          {&corev1.VolumeNodeAffinity{}, here, true, false},
		"its zone":                       {affinityOf(expressions{expression("zone", in, "a")}), here, true, false},
		"one of its zones":               {affinityOf(expressions{expression("zone", in, "x")}, expressions{expression("zone", in, "a")}), here, true, false},
		"all of a term":                  {affinityOf(expressions{expression("zone", in, "a"), expression("host", in, "h2")}), here, false, false},
		"another host":                   {affinityOf(expressions{expression("host", in, "h2")}), here, false, false},
		"no term at all":                 {affinityOf(), here, false, false},
		"the node has no segments":       {affinityOf(expressions{expression("zone", in, "a")}), &csi.Topology{}, false, false},
		"but what is denied holds there": {affinityOf(expressions{expression("zone", corev1.NodeSelectorOpDoesNotExist)}), &csi.Topology{}, true, false},
		"denied":                         {affinityOf(expressions{expression("zone", corev1.NodeSelectorOpNotIn, "a")}), here, false, false},
		"denied elsewhere":               {affinityOf(expressions{expression("zone", corev1.NodeSelectorOpNotIn, "b")}), here, true, false},
		"there at all":                   {affinityOf(expressions{expression("zone", corev1.NodeSelectorOpExists)}), here, true, false},
		"beyond understanding":           {affinityOf(expressions{expression("zone", "Near", "a")}), here, false, true},
		"but another term matches":       {affinityOf(expressions{expression("zone", "Near", "a")}, expressions{expression("zone", in, "a")}), here, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Accessible(tc.affinity, tc.local)
			if got != tc.want || (err != nil) != tc.wantErr {
				t.Errorf("Accessible = %v, %v, want %v, error: %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}

// A volume that a driver placed at its node's topology is accessible from there, and Affinity says the same twice.
func TestAffinityIsAccessible(t *testing.T) {
	t.Parallel()
	local := one("host=h1,rack=r,zone=a").CSI()
	affinity := Affinity([]*csi.Topology{one("zone=q").CSI(), local})
	if ok, err := Accessible(affinity, local); !ok || err != nil {
		t.Errorf("Accessible = %v, %v", ok, err)
	}
	for range 20 {
		if diff := cmp.Diff(affinity, Affinity([]*csi.Topology{one("zone=q").CSI(), local})); diff != "" {
			t.Fatalf("another time it is another one (-want +got):\n%s", diff)
		}
	}
}
