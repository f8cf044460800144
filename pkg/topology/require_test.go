package topology

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// one returns the term that text describes: "zone=a,host=h1".
func one(text string) Segment {
	pairs := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		key, value, _ := strings.Cut(part, "=")
		pairs[key] = value
	}
	return SegmentOf(pairs)
}

// texts lists terms as strings, in their order.
func texts(topologies []*csi.Topology) string {
	var out []string
	for _, t := range topologies {
		out = append(out, SegmentOf(t.GetSegments()).String())
	}
	return strings.Join(out, " ")
}

// allow returns one entry: "zone=b|c,rack=r".
func allow(entries ...string) []corev1.TopologySelectorTerm {
	var allowed []corev1.TopologySelectorTerm
	for _, entry := range entries {
		var term corev1.TopologySelectorTerm
		for part := range strings.SplitSeq(entry, ",") {
			if key, values, ok := strings.Cut(part, "="); ok {
				e := corev1.TopologySelectorLabelRequirement{Key: key}
				if values != "" {
					e.Values = strings.Split(values, "|")
				}
				term.MatchLabelExpressions = append(term.MatchLabelExpressions, e)
			}
		}
		allowed = append(allowed, term)
	}
	return allowed
}

// clusterA and clusterB are the contract's: four nodes in three zones, by one key and by two.
func clusterA() []naiveNode { return cluster("zone") }
func clusterB() []naiveNode { return cluster("zone", "host") }

func cluster(keys ...string) []naiveNode {
	var nodes []naiveNode
	for i, zone := range []string{"a", "b", "c", "b"} {
		labels := map[string]string{"zone": zone, "host": fmt.Sprintf("h%d", i+1), "arch": "amd64"}
		nodes = append(nodes, naiveNode{name: fmt.Sprintf("n%d", i+1), labels: labels, keys: keys})
	}
	return nodes
}

// The worked examples of the contract, row by row. An expected text of "error: x" means an error with x in it, and
// "none" no requirement.
func TestRequireWorkedExamples(t *testing.T) {
	t.Parallel()
	const list = "host=h1,zone=a host=h2,zone=b host=h3,zone=c host=h4,zone=b"
	missing := clusterA()
	missing[2].labels = map[string]string{"arch": "amd64"}
	mixed := clusterB()
	mixed[0].keys = []string{"zone"}
	unregistered := clusterA()
	unregistered[2].keys = nil
	nowhere := cluster()
	disk := []naiveNode{{name: "n1", labels: map[string]string{"disk": "ssd", "rack": "r1", "zone": "z1"}, keys: []string{"zone", "disk", "rack"}}}
	for name, tc := range map[string]struct {
		nodes         []naiveNode
		r             Request
		wantRequisite string
		wantPreferred string
	}{
		"one key, claim 0":                        {clusterA(), Request{ClaimName: "data-web-0", Immediate: true}, "zone=a zone=b zone=c", "zone=a zone=b zone=c"},
		"one key, claim 1":                        {clusterA(), Request{ClaimName: "data-web-1", Immediate: true}, "zone=a zone=b zone=c", "zone=b zone=c zone=a"},
		"one key, claim 2, strict":                {clusterA(), Request{ClaimName: "data-web-2", Immediate: true, Strict: true}, "zone=a zone=b zone=c", "zone=c zone=a zone=b"},
		"no selected node, not immediate":         {clusterA(), Request{ClaimName: "data-web-0"}, "none", ""},
		"no selected node, not immediate, strict": {clusterA(), Request{ClaimName: "data-web-0", Strict: true}, "none", ""},
		"allowed, claim 0":                        {clusterA(), Request{ClaimName: "data-web-0", AllowedTopologies: allow("zone=c|b")}, "zone=b zone=c", "zone=c zone=b"},
		"allowed, claim 1":                        {clusterA(), Request{ClaimName: "data-web-1", AllowedTopologies: allow("zone=c|b"), Immediate: true}, "zone=b zone=c", "zone=b zone=c"},
		"allowed, claim 2":                        {clusterA(), Request{ClaimName: "data-web-2", AllowedTopologies: allow("zone=c|b"), Strict: true}, "zone=b zone=c", "zone=c zone=b"},
		"one allowed":                             {clusterA(), Request{ClaimName: "any", AllowedTopologies: allow("zone=a")}, "zone=a", "zone=a"},
		"allowed nowhere in the cluster":          {clusterA(), Request{ClaimName: "any", AllowedTopologies: allow("zone=moon")}, "zone=moon", "zone=moon"},
		"selected":                                {clusterA(), Request{SelectedNode: "n4"}, "zone=a zone=b zone=c", "zone=b zone=c zone=a"},
		"selected, strict":                        {clusterA(), Request{SelectedNode: "n4", Strict: true}, "zone=b", "zone=b"},
		"selected, allowed":                       {clusterA(), Request{SelectedNode: "n4", AllowedTopologies: allow("zone=b|c"), Immediate: true}, "zone=b zone=c", "zone=b zone=c"},
		"selected, strict, allowed":               {clusterA(), Request{SelectedNode: "n4", Strict: true, AllowedTopologies: allow("zone=b|c")}, "zone=b", "zone=b"},
		"selected, other zone allowed":            {clusterA(), Request{SelectedNode: "n4", AllowedTopologies: allow("zone=a")}, "error: n4", ""},
		"selected, strict, other zone allowed":    {clusterA(), Request{SelectedNode: "n4", Strict: true, AllowedTopologies: allow("zone=a")}, "error: zone in (a)", ""},
		"n3":                                      {clusterA(), Request{SelectedNode: "n3"}, "zone=a zone=b zone=c", "zone=c zone=a zone=b"},
		"n3, strict":                              {clusterA(), Request{SelectedNode: "n3", Strict: true}, "zone=c", "zone=c"},
		"n3, allowed":                             {clusterA(), Request{SelectedNode: "n3", AllowedTopologies: allow("zone=b|c")}, "zone=b zone=c", "zone=c zone=b"},
		"n3, strict, allowed":                     {clusterA(), Request{SelectedNode: "n3", Strict: true, AllowedTopologies: allow("zone=b|c")}, "zone=c", "zone=c"},
		"n1":                                      {clusterA(), Request{SelectedNode: "n1"}, "zone=a zone=b zone=c", "zone=a zone=b zone=c"},
		"n1 outside":                              {clusterA(), Request{SelectedNode: "n1", AllowedTopologies: allow("zone=b|c")}, "error: requisite", ""},
		"n1 outside, strict":                      {clusterA(), Request{SelectedNode: "n1", Strict: true, AllowedTopologies: allow("zone=b|c")}, "error: allowedTopologies", ""},
		"n1 inside":                               {clusterA(), Request{SelectedNode: "n1", AllowedTopologies: allow("zone=a")}, "zone=a", "zone=a"},
		"n1 inside, strict":                       {clusterA(), Request{SelectedNode: "n1", Strict: true, AllowedTopologies: allow("zone=a")}, "zone=a", "zone=a"},

		"two keys, claim 0":              {clusterB(), Request{ClaimName: "data-web-0", Immediate: true}, list, "host=h2,zone=b host=h3,zone=c host=h4,zone=b host=h1,zone=a"},
		"two keys, claim 1":              {clusterB(), Request{ClaimName: "data-web-1", Immediate: true}, list, "host=h3,zone=c host=h4,zone=b host=h1,zone=a host=h2,zone=b"},
		"two keys, claim 2":              {clusterB(), Request{ClaimName: "data-web-2", Immediate: true}, list, "host=h4,zone=b host=h1,zone=a host=h2,zone=b host=h3,zone=c"},
		"two keys, allowed":              {clusterB(), Request{ClaimName: "data-web-0", AllowedTopologies: allow("zone=b|c")}, "zone=b zone=c", "zone=c zone=b"},
		"two keys, n4":                   {clusterB(), Request{SelectedNode: "n4"}, list, "host=h4,zone=b host=h1,zone=a host=h2,zone=b host=h3,zone=c"},
		"two keys, n4, strict":           {clusterB(), Request{SelectedNode: "n4", Strict: true}, "host=h4,zone=b", "host=h4,zone=b"},
		"two keys, n4, allowed":          {clusterB(), Request{SelectedNode: "n4", AllowedTopologies: allow("zone=b|c")}, "zone=b zone=c", "zone=b zone=c"},
		"two keys, n4, strict, allowed":  {clusterB(), Request{SelectedNode: "n4", Strict: true, AllowedTopologies: allow("zone=b|c")}, "host=h4,zone=b", "host=h4,zone=b"},
		"two keys, n4 outside":           {clusterB(), Request{SelectedNode: "n4", AllowedTopologies: allow("zone=a")}, "error: n4", ""},
		"two keys, n4 outside, strict":   {clusterB(), Request{SelectedNode: "n4", Strict: true, AllowedTopologies: allow("zone=a")}, "error: n4", ""},
		"two keys, n3":                   {clusterB(), Request{SelectedNode: "n3"}, list, "host=h3,zone=c host=h4,zone=b host=h1,zone=a host=h2,zone=b"},
		"two keys, n3, allowed":          {clusterB(), Request{SelectedNode: "n3", AllowedTopologies: allow("zone=b|c")}, "zone=b zone=c", "zone=c zone=b"},
		"coarser and finer allowed term": {clusterB(), Request{SelectedNode: "n4", AllowedTopologies: allow("host=h4,zone=b", "zone=b")}, "zone=b host=h4,zone=b", "zone=b host=h4,zone=b"},

		"allowed by some keys":              {disk, Request{SelectedNode: "n1", AllowedTopologies: allow("disk=ssd,zone=z1")}, "disk=ssd,zone=z1", "disk=ssd,zone=z1"},
		"allowed by some keys, strict":      {disk, Request{SelectedNode: "n1", Strict: true, AllowedTopologies: allow("disk=ssd,zone=z1")}, "disk=ssd,rack=r1,zone=z1", "disk=ssd,rack=r1,zone=z1"},
		"allowed by a label that is no key": {clusterA(), Request{SelectedNode: "n1", AllowedTopologies: allow("arch=amd64")}, "error: requisite", ""},

		"registered nowhere, immediate":                  {nowhere, Request{ClaimName: "c", Immediate: true}, "error: no available topology", ""},
		"registered nowhere, not immediate":              {nowhere, Request{ClaimName: "c"}, "none", ""},
		"registered nowhere, selected":                   {nowhere, Request{SelectedNode: "n1"}, "error: no topology key found", ""},
		"a label is missing on the selected node":        {missing, Request{SelectedNode: "n3"}, "error: zone", ""},
		"a label is missing on another node":             {missing, Request{SelectedNode: "n1"}, "zone=a zone=b", "zone=a zone=b"},
		"other nodes have more keys":                     {mixed, Request{SelectedNode: "n1"}, "zone=a zone=b zone=c", "zone=a zone=b zone=c"},
		"a node has more keys than others":               {mixed, Request{ClaimName: "data-web-0", Immediate: true}, "zone=a host=h2,zone=b host=h3,zone=c host=h4,zone=b", "host=h2,zone=b host=h3,zone=c host=h4,zone=b zone=a"},
		"others have fewer keys":                         {mixed, Request{SelectedNode: "n3"}, "host=h2,zone=b host=h3,zone=c host=h4,zone=b", "host=h3,zone=c host=h4,zone=b host=h2,zone=b"},
		"not registered on a node":                       {unregistered, Request{ClaimName: "data-web-0", Immediate: true}, "zone=a zone=b", "zone=b zone=a"},
		"not registered on another node":                 {unregistered, Request{SelectedNode: "n4"}, "zone=a zone=b", "zone=b zone=a"},
		"allowed stands for nothing":                     {clusterA(), Request{ClaimName: "c", AllowedTopologies: allow(""), Immediate: true}, "none", ""},
		"allowed stands for nothing, selected":           {clusterA(), Request{SelectedNode: "n1", AllowedTopologies: allow("")}, "none", ""},
		"allowed stands for nothing, keep":               {clusterA(), Request{SelectedNode: "n1", AllowedTopologies: allow(""), KeepNodeTopology: true}, "none", ""},
		"allowed stands for nothing, selected, strict":   {clusterA(), Request{SelectedNode: "n1", AllowedTopologies: allow(""), Strict: true}, "error: n1", ""},
		"allowed stands for nothing, node without label": {missing, Request{SelectedNode: "n3", AllowedTopologies: allow("")}, "error: expected", ""},

		"keep the node's topology":             {clusterB(), Request{SelectedNode: "n4", AllowedTopologies: allow("zone=b|c"), KeepNodeTopology: true}, "host=h2,zone=b host=h3,zone=c host=h4,zone=b", "host=h4,zone=b host=h2,zone=b host=h3,zone=c"},
		"keep, but the node is outside":        {clusterB(), Request{SelectedNode: "n1", AllowedTopologies: allow("zone=b|c"), KeepNodeTopology: true}, "error: n1", ""},
		"keep, but nothing is inside":          {clusterB(), Request{SelectedNode: "n1", AllowedTopologies: allow("zone=moon"), KeepNodeTopology: true}, "error: admit none", ""},
		"keep changes nothing without a node":  {clusterB(), Request{ClaimName: "data-web-0", AllowedTopologies: allow("zone=b|c"), KeepNodeTopology: true}, "zone=b zone=c", "zone=c zone=b"},
		"keep changes nothing without allowed": {clusterA(), Request{SelectedNode: "n4", KeepNodeTopology: true}, "zone=a zone=b zone=c", "zone=b zone=c zone=a"},
		"keep changes nothing when strict":     {clusterB(), Request{SelectedNode: "n4", Strict: true, AllowedTopologies: allow("zone=b|c"), KeepNodeTopology: true}, "host=h4,zone=b", "host=h4,zone=b"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := requireFrom(tc.r, tc.nodes)
			if want, isErr := strings.CutPrefix(tc.wantRequisite, "error: "); isErr {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("error %v, want one with %q", err, want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			requisite, preferred := "none", ""
			if got != nil {
				requisite, preferred = texts(got.GetRequisite()), texts(got.GetPreferred())
			}
			if diff := cmp.Diff([]string{tc.wantRequisite, tc.wantPreferred}, []string{requisite, preferred}); diff != "" {
				t.Errorf("requisite, preferred (-want +got):\n%s", diff)
			}
		})
	}
}

func requireFrom(r Request, nodes []naiveNode) (*csi.TopologyRequirement, error) {
	f, err := naiveFacts(r, nodes)
	if err != nil {
		return nil, err
	}
	return Require(r, f)
}

// P10, TP6: whoever is gone is named, and is recognised as gone; whoever is only incomplete is not.
func TestSelectSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	full := Member{NodeExists: true, CSINodeExists: true, Registered: true, Keys: []string{"rack", "zone"}, Labels: one("rack=r,zone=a,x=y")}
	for name, tc := range map[string]struct {
		change      func(*Member)
		wantGone    bool
		wantMention []string
	}{
		"no CSINode":             {func(m *Member) { m.CSINodeExists = false }, true, []string{"n1", "CSINode"}},
		"no Node":                {func(m *Member) { m.NodeExists = false }, true, []string{"n1", "rack zone"}},
		"neither":                {func(m *Member) { *m = Member{} }, true, []string{"n1"}},
		"driver not registered":  {func(m *Member) { m.Registered = false }, false, []string{"n1", "no topology key"}},
		"registered without key": {func(m *Member) { m.Keys = nil }, false, []string{"n1", "no topology key"}},
		"label not there yet":    {func(m *Member) { m.Labels = one("zone=a") }, false, []string{"n1", "zone=a", "rack zone"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := full
			tc.change(&m)
			_, err := m.Select("n1")
			if err == nil || errors.Is(err, ErrNodeGone) != tc.wantGone {
				t.Fatalf("error %v, want one with ErrNodeGone: %v", err, tc.wantGone)
			}
			for _, text := range tc.wantMention {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("error %q does not mention %q", err, text)
				}
			}
		})
	}
	got, err := full.Select("n1")
	if err != nil || got != one("rack=r,zone=a") {
		t.Errorf("Select = {%s}, %v", got, err)
	}
}

func TestMemberSegment(t *testing.T) {
	t.Parallel()
	there := Member{NodeExists: true, CSINodeExists: true, Registered: true}
	for name, tc := range map[string]struct {
		m      Member
		want   Segment
		wantOK bool
	}{
		"a driver without keys is everywhere": {m: there, wantOK: true},
		"not registered":                      {m: Member{NodeExists: true, CSINodeExists: true}},
		"no Node":                             {m: Member{CSINodeExists: true, Registered: true}},
		"no CSINode":                          {m: Member{NodeExists: true}},
		"with its label":                      {m: Member{true, true, true, []string{"zone"}, one("zone=a,rack=r")}, want: one("zone=a"), wantOK: true},
		"an empty value is a value":           {m: Member{true, true, true, []string{"zone"}, one("zone=")}, want: one("zone="), wantOK: true},
		"without its label":                   {m: Member{true, true, true, []string{"zone"}, one("rack=r")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := tc.m.Segment()
			if got != tc.want || ok != tc.wantOK {
				t.Errorf("Segment = {%s}, %v, want {%s}, %v", got, ok, tc.want, tc.wantOK)
			}
		})
	}
}

// Random clusters and requests: the code agrees with its naive twin, changes nothing it was given, and says the
// same thing twice.
func TestRequireAgreesWithNaiveTwin(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(4, 2))
	counts := map[string]int{}
	for range 6_000 {
		r, nodes := randomRequest(rnd), randomNodes(rnd)
		wantR, wantP, wantErr := naiveRequire(r, nodes)
		f, err := naiveFacts(r, nodes)
		var got *csi.TopologyRequirement
		if err == nil {
			got, err = Require(r, f)
		}
		if (err != nil) != (wantErr != nil) || errors.Is(err, ErrNodeGone) != errors.Is(wantErr, ErrNodeGone) {
			t.Fatalf("error %v, want %v\nrequest %+v\nnodes %+v", err, wantErr, r, nodes)
		}
		if err != nil {
			counts["error"]++
			continue
		}
		if diff := cmp.Diff([][]map[string]string{wantR, wantP}, [][]map[string]string{mapsOf(got.GetRequisite()), mapsOf(got.GetPreferred())}); diff != "" {
			t.Fatalf("requisite, preferred (-want +got):\n%s\nrequest %+v\nnodes %+v", diff, r, nodes)
		}
		if (got == nil) != (wantR == nil) {
			t.Fatalf("requirement %v, want none: %v", got, wantR == nil)
		}
		if got == nil {
			counts["none"]++
			continue
		}
		counts["requirement"]++
		if i := rotation(got.GetRequisite(), got.GetPreferred()); i < 0 {
			t.Fatalf("preferred is not a rotation of requisite: %v", got)
		}
	}
	for _, kind := range []string{"error", "none", "requirement"} {
		if counts[kind] < 300 {
			t.Errorf("only %d of the cases ended with %s", counts[kind], kind)
		}
	}
}

func mapsOf(topologies []*csi.Topology) []map[string]string {
	var out []map[string]string
	for _, t := range topologies {
		out = append(out, t.GetSegments())
	}
	return out
}

var (
	testKeys   = []string{"host", "rack", "zone"}
	testValues = []string{"a", "b", "c"}
)

func pick[T any](rnd *rand.Rand, list []T) T { return list[rnd.IntN(len(list))] }

func randomNodes(rnd *rand.Rand) []naiveNode {
	var nodes []naiveNode
	for i := range rnd.IntN(6) {
		n := naiveNode{name: fmt.Sprintf("n%d", i), labels: map[string]string{}}
		for _, key := range testKeys {
			if rnd.IntN(6) > 0 {
				n.labels[key] = pick(rnd, testValues)
			}
		}
		for range rnd.IntN(4) {
			n.keys = append(n.keys, pick(rnd, testKeys))
		}
		nodes = append(nodes, n)
	}
	return nodes
}

func randomRequest(rnd *rand.Rand) Request {
	r := Request{
		ClaimName: pick(rnd, []string{"c", "data-web-0", "data-web-1", "data-web-17", "x-007", "x--1", "x-4294967295", "x-4294967296", "-5", "a-b"}),
		Strict:    rnd.IntN(3) == 0, Immediate: rnd.IntN(3) > 0, KeepNodeTopology: rnd.IntN(2) == 0,
	}
	if rnd.IntN(2) == 0 {
		r.SelectedNode = fmt.Sprintf("n%d", rnd.IntN(6))
	}
	if rnd.IntN(2) == 0 {
		for range rnd.IntN(3) {
			var term corev1.TopologySelectorTerm
			keys := rnd.Perm(len(testKeys))[:rnd.IntN(3)]
			for _, k := range keys {
				e := corev1.TopologySelectorLabelRequirement{Key: testKeys[k]}
				for _, v := range rnd.Perm(len(testValues))[:1+rnd.IntN(3)] {
					e.Values = append(e.Values, testValues[v])
				}
				term.MatchLabelExpressions = append(term.MatchLabelExpressions, e)
			}
			r.AllowedTopologies = append(r.AllowedTopologies, term)
		}
	}
	return r
}

// Claims of one class share what --keep-node-topology leaves of the cluster's terms.
func TestKeptTermsAreShared(t *testing.T) {
	t.Parallel()
	f, err := naiveFacts(Request{SelectedNode: "n4"}, clusterB())
	if err != nil {
		t.Fatal(err)
	}
	require := func(node, allowed string) []*csi.Topology {
		t.Helper()
		got, err := Require(Request{SelectedNode: "n4", KeepNodeTopology: true, AllowedTopologies: allow(allowed)}, Facts{Node: one(node), Terms: f.Terms})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetRequisite()
	}
	first, second := require("host=h4,zone=b", "zone=b|c"), require("host=h3,zone=c", "zone=b|c")
	if &first[0] != &second[0] {
		t.Error("the same class was worked out twice")
	}
	if other := require("host=h4,zone=b", "zone=b"); len(other) != 2 || other[0] != first[0] {
		t.Errorf("another class got %v", other)
	}
	for i := range 3 * maxParts {
		require("host=h4,zone=b", fmt.Sprintf("zone=b|x%d", i))
	}
	if len(f.Terms.parts) > maxParts {
		t.Errorf("%d parts kept, want at most %d", len(f.Terms.parts), maxParts)
	}
}
