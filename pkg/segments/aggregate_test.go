package segments

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// requisite lists the requisite terms as one string, in their order.
func requisite(r *csi.TopologyRequirement) string {
	var terms []topology.Segment
	for _, term := range r.GetRequisite() {
		terms = append(terms, topology.SegmentOf(term.GetSegments()))
	}
	return texts(terms)
}

// cell is a node: its name, its labels, and the keys that the driver registered on it, "-" when it did not register.
type cell struct{ name, labels, keys string }

func fedWith(t *testing.T, cells []cell) (x *Index, nodes, csiNodes store) {
	t.Helper()
	x, nodes, csiNodes = fed(t, "region", "zone", "rack")
	for _, c := range cells {
		nodes.apply(node(c.name, c.labels))
		csiNodes.apply(csiNode(c.name, c.keys))
	}
	return x, nodes, csiNodes
}

// Without a selected node each node counts with exactly the keys that the driver registered on it.
func TestAggregateWithoutSelectedNode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cells []cell
		// An expected text of "error: x" means an error with x in it.
		want string
	}{
		"two key sets": {[]cell{{"a", "region=r1", "region"}, {"b", "region=r2,zone=z1", "region zone"}},
			"{region=r1} {region=r2,zone=z1}"},
		"a term that another implies": {[]cell{{"a", "region=r1", "region"}, {"b", "region=r1,zone=z1", "region zone"}},
			"{region=r1} {region=r1,zone=z1}"},
		"more labels than keys": {[]cell{{"a", "region=r1,zone=z1,rack=k1", "region"}, {"b", "region=r1,zone=z1", "zone region"}},
			"{region=r1} {region=r1,zone=z1}"},
		"not registered":                 {[]cell{{"a", "zone=z1", "zone"}, {"b", "zone=z2", "-"}}, "{zone=z1}"},
		"registered without keys":        {[]cell{{"a", "zone=z1", "zone"}, {"b", "zone=z2", ""}}, "{zone=z1}"},
		"no label on one node":           {[]cell{{"a", "", "zone"}, {"b", "zone=z2", "zone"}}, "{zone=z2}"},
		"some of the labels on one node": {[]cell{{"a", "region=r1", "region zone"}, {"b", "region=r2", "region"}}, "{region=r2}"},
		"no label on any node":           {[]cell{{"a", "", "zone"}}, "error: keys [zone] are not found"},
		"no label, several key sets":     {[]cell{{"a", "", "zone"}, {"b", "zone=z1", "rack zone"}}, "error: keys [rack zone] are not found"},
		"no node has keys":               {[]cell{{"a", "zone=z1", ""}, {"b", "zone=z2", "-"}}, "error: no available topology"},
		"no node":                        {nil, "error: no available topology"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, _, _ := fedWith(t, tc.cells)
			got, err := x.Require(t.Context(), topology.Request{ClaimName: "c", Immediate: true})
			wantAggregate(t, tc.want, got, err)
		})
	}
}

// With a selected node the others count with its keys, if the driver registered all of them there.
func TestAggregateForSelectedNode(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		cells []cell
		want  string
	}{
		"the same keys":              {[]cell{{"n", "zone=z1", "zone"}, {"b", "zone=z2", "zone"}}, "{zone=z1} {zone=z2}"},
		"keys in another order":      {[]cell{{"n", "zone=z1,rack=k1", "zone rack"}, {"b", "zone=z2,rack=k2", "rack zone"}}, "{rack=k1,zone=z1} {rack=k2,zone=z2}"},
		"more keys":                  {[]cell{{"n", "zone=z1", "zone"}, {"b", "zone=z2,rack=k1", "zone rack"}}, "{zone=z1} {zone=z2}"},
		"more keys, label is away":   {[]cell{{"n", "zone=z1", "zone"}, {"b", "zone=z2", "zone rack"}}, "{zone=z1} {zone=z2}"},
		"fewer keys":                 {[]cell{{"n", "zone=z1,rack=k1", "zone rack"}, {"b", "zone=z2,rack=k2", "zone"}}, "{rack=k1,zone=z1}"},
		"other keys":                 {[]cell{{"n", "zone=z1", "zone"}, {"b", "zone=z2,rack=k1", "rack"}}, "{zone=z1}"},
		"not registered":             {[]cell{{"n", "zone=z1", "zone"}, {"b", "zone=z2", "-"}}, "{zone=z1}"},
		"registered without keys":    {[]cell{{"n", "zone=z1", "zone"}, {"b", "zone=z2", ""}}, "{zone=z1}"},
		"no label on another node":   {[]cell{{"n", "zone=z1", "zone"}, {"b", "rack=k1", "zone"}}, "{zone=z1}"},
		"no label on the node":       {[]cell{{"n", "rack=k1", "zone"}, {"b", "zone=z2", "zone"}}, "error: zone"},
		"not registered on the node": {[]cell{{"n", "zone=z1", "-"}, {"b", "zone=z2", "zone"}}, "error: no topology key found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, _, _ := fedWith(t, tc.cells)
			got, err := x.Require(t.Context(), topology.Request{SelectedNode: "n"})
			wantAggregate(t, tc.want, got, err)
			// The same when the nodes come in another order, between claims without a selected node.
			x, nodes, csiNodes := fedWith(t, nil)
			for i := range tc.cells {
				c := tc.cells[len(tc.cells)-1-i]
				csiNodes.apply(csiNode(c.name, c.keys))
				nodes.apply(node(c.name, c.labels))
				_, _ = x.Require(t.Context(), topology.Request{ClaimName: "c", Immediate: true})
			}
			got, err = x.Require(t.Context(), topology.Request{SelectedNode: "n"})
			wantAggregate(t, tc.want, got, err)
		})
	}
}

func wantAggregate(t *testing.T, want string, got *csi.TopologyRequirement, err error) {
	t.Helper()
	if text, isErr := strings.CutPrefix(want, "error: "); isErr {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("requisite %s, error %v, want one with %q", requisite(got), err, text)
		}
		return
	}
	if err != nil || requisite(got) != want {
		t.Errorf("requisite %s, %v, want %s", requisite(got), err, want)
	}
}

// The keys of a node change, and sets of keys come into use and go out of it, between claims.
func TestAggregateFollowsKeySets(t *testing.T) {
	t.Parallel()
	x, _, csiNodes := fedWith(t, []cell{{"n", "zone=z1,rack=k1", "zone rack"}, {"b", "zone=z2,rack=k2", "zone rack"}, {"c", "zone=z3", "-"}})
	check := func(step, wantAll, wantN string) {
		t.Helper()
		got, err := x.Require(t.Context(), topology.Request{ClaimName: "c", Immediate: true})
		if err != nil || requisite(got) != wantAll {
			t.Errorf("%s: requisite %s, %v, want %s", step, requisite(got), err, wantAll)
		}
		if got, err = x.Require(t.Context(), topology.Request{SelectedNode: "n"}); err != nil || requisite(got) != wantN {
			t.Errorf("%s: requisite for n %s, %v, want %s", step, requisite(got), err, wantN)
		}
	}
	check("at first", "{rack=k1,zone=z1} {rack=k2,zone=z2}", "{rack=k1,zone=z1} {rack=k2,zone=z2}")
	csiNodes.apply(csiNode("n", "zone"))
	check("n has fewer keys", "{zone=z1} {rack=k2,zone=z2}", "{zone=z1} {zone=z2}")
	csiNodes.apply(csiNode("c", "zone"))
	check("c registers", "{zone=z1} {zone=z3} {rack=k2,zone=z2}", "{zone=z1} {zone=z2} {zone=z3}")
	csiNodes.apply(csiNode("b", "-"))
	check("the last node with rack goes", "{zone=z1} {zone=z3}", "{zone=z1} {zone=z3}")
	csiNodes.remove(csiNode("c", ""))
	check("c goes", "{zone=z1}", "{zone=z1}")
	csiNodes.apply(csiNode("n", "zone rack"))
	check("n has both keys again", "{rack=k1,zone=z1}", "{rack=k1,zone=z1}")
}

// Keys that no CSINode registers as they are, like those of a hint, count on the nodes where all of them are registered.
func TestTermsOfKeysThatAreNoSet(t *testing.T) {
	t.Parallel()
	x, _, _ := fedWith(t, []cell{{"a", "zone=z1,rack=k1", "zone rack"}, {"b", "zone=z2", "-"}, {"c", "zone=z3", "region"}, {"d", "zone=z4", "rack zone"}})
	if got := texts(x.table.termsOf([]string{"zone"}).Segments()); got != "{zone=z1} {zone=z4}" {
		t.Errorf("terms %s, want those of a and d", got)
	}
}

// A set of keys that comes and goes leaves nothing behind that later events have to pay for.
func TestSetOutOfUseIsForgotten(t *testing.T) {
	t.Parallel()
	x, _, csiNodes := fedWith(t, []cell{{"a", "zone=z1,rack=k1", "zone rack"}, {"b", "zone=z2,rack=k2", "zone"}})
	for range 3 {
		csiNodes.apply(csiNode("b", "rack"))
		csiNodes.apply(csiNode("b", "zone"))
	}
	set := x.table.nodes["a"].set
	if len(set.parts) != 2 || len(x.table.sets) != 2 {
		t.Errorf("%d sets in use, %d of them part of [rack zone], want 2 and 2", len(x.table.sets), len(set.parts))
	}
}

// An event that changes no term costs the next claim nothing: it gets the list that was there.
func TestListIsKeptWhileNoTermChanges(t *testing.T) {
	t.Parallel()
	x, nodes, csiNodes := fedWith(t, []cell{{"a", "zone=z1", "zone"}, {"b", "zone=z2,rack=k2", "zone rack"}})
	all, own := x.table.allTerms(), x.table.termsOf([]string{"zone"})
	nodes.apply(node("a", "zone=z1,rack=k3"))
	nodes.apply(node("b", "zone=z2,rack=k2"))
	csiNodes.apply(csiNode("b", "rack zone"))
	if x.table.allTerms() != all || x.table.termsOf([]string{"zone"}) != own {
		t.Error("a list was made anew although no term came or went")
	}
}

// Claims of one class share the terms of its allowedTopologies.
func TestAllowedTopologiesAreShared(t *testing.T) {
	t.Parallel()
	x, _, _ := fedWith(t, []cell{{"n", "zone=z1", "zone"}})
	for name, from := range map[string]source{"index": x, "fixed": NewFixed("n", &csi.Topology{Segments: pairs("zone=z1")})} {
		var first []*csi.Topology
		for range 2 {
			allowed := []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{"z1", "z2"}}}}}
			got, err := from.Require(t.Context(), topology.Request{SelectedNode: "n", AllowedTopologies: allowed})
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = got.GetRequisite()
			} else if &first[0] != &got.GetRequisite()[0] {
				t.Errorf("%s: the same class was expanded twice", name)
			}
		}
	}
}
