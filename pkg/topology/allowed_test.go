package topology

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestExpand(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		allowed []string
		want    []string
	}{
		"one value":                        {[]string{"zone=z1"}, []string{"zone=z1"}},
		"every choice of values":           {[]string{"zone=z1|z2,rack=rA|rB"}, []string{"rack=rA,zone=z1", "rack=rA,zone=z2", "rack=rB,zone=z1", "rack=rB,zone=z2"}},
		"entries overlap":                  {[]string{"zone=z1|z2", "zone=z2|z3"}, []string{"zone=z1", "zone=z2", "zone=z3"}},
		"an implied term stays":            {[]string{"zone=z1", "zone=z1,rack=rA"}, []string{"zone=z1", "rack=rA,zone=z1"}},
		"an entry without expressions":     {[]string{""}, nil},
		"beside one with":                  {[]string{"", "zone=z1"}, []string{"zone=z1"}},
		"no values take what came before":  {[]string{"zone=a,rack="}, nil},
		"no values leave what comes after": {[]string{"zone=,rack=r"}, []string{"rack=r"}},
		"a key twice":                      {[]string{"zone=a,zone=b"}, []string{"zone=a,zone=b"}},
		"a value twice":                    {[]string{"zone=a|a"}, []string{"zone=a"}},
		"nothing":                          {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Expand(allow(tc.allowed...))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, stringsOf(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if standsForNothing(allow(tc.allowed...)) != (len(got) == 0) {
				t.Error("standsForNothing disagrees")
			}
		})
	}
	twice, err := Expand(allow("zone=a,zone=b"))
	if err != nil || twice[0].CSI().GetSegments()["zone"] != "b" {
		t.Errorf("a key twice keeps its last value on the wire: %v, %v", twice, err)
	}
}

// TP2: a class that stands for more terms than memory could hold is refused, and still can be tested against a node.
func TestExpandRefusesAbsurdSizes(t *testing.T) {
	t.Parallel()
	var values []string
	for i := range 100 {
		values = append(values, fmt.Sprintf("v%d", i))
	}
	var expressions []string
	for i := range 20 {
		expressions = append(expressions, fmt.Sprintf("k%02d=%s", i, strings.Join(values, "|")))
	}
	huge := allow(strings.Join(expressions, ","))
	if _, err := Expand(huge); err == nil {
		t.Error("10^40 terms were accepted")
	}
	if _, err := Require(Request{ClaimName: "c", AllowedTopologies: huge}, Facts{}); err == nil || !strings.Contains(err.Error(), "allowedTopologies") {
		t.Errorf("error %v, want one that names allowedTopologies", err)
	}
	node := map[string]string{}
	for i := range 20 {
		node[fmt.Sprintf("k%02d", i)] = "v99"
	}
	if got, err := Require(Request{SelectedNode: "n", Strict: true, AllowedTopologies: huge}, Facts{Node: SegmentOf(node)}); err != nil || len(got.GetRequisite()) != 1 {
		t.Errorf("strict: %v, %v", got, err)
	}
	var many []string
	for i := range 300 {
		many = append(many, fmt.Sprintf("a%03d=%s", i, strings.Join(values, "|")))
	}
	if _, err := Expand(allow(many...)); err == nil {
		t.Error("30,000 terms of many entries were accepted")
	}
}

// Random entries, also such as the API server refuses: Satisfies says what expanding and looking says, and for
// entries that it lets in, Expand gives what the naive twin gives.
func TestAllowedAgreesWithNaiveTwin(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(6, 28))
	hits := 0
	for range 8_000 {
		var allowed []corev1.TopologySelectorTerm
		regular := true
		for range rnd.IntN(4) {
			var term corev1.TopologySelectorTerm
			seen := map[string]bool{}
			for range rnd.IntN(4) {
				e := corev1.TopologySelectorLabelRequirement{Key: pick(rnd, testKeys)}
				for range rnd.IntN(4) {
					e.Values = append(e.Values, pick(rnd, testValues))
				}
				regular = regular && len(e.Values) > 0 && !seen[e.Key]
				seen[e.Key] = true
				term.MatchLabelExpressions = append(term.MatchLabelExpressions, e)
			}
			allowed = append(allowed, term)
		}
		expanded, err := Expand(allowed)
		if err != nil {
			t.Fatal(err)
		}
		if regular {
			var want []string
			for _, m := range naiveExpand(allowed) {
				want = append(want, SegmentOf(m).String())
			}
			if diff := cmp.Diff(want, stringsOf(expanded)); diff != "" {
				t.Fatalf("%v (-want +got):\n%s", allowed, diff)
			}
		}
		node := map[string]string{}
		for _, key := range testKeys {
			if rnd.IntN(5) > 0 {
				node[key] = pick(rnd, testValues)
			}
		}
		s := SegmentOf(node)
		want := slices.ContainsFunc(expanded, func(a Segment) bool { return a.In(s) })
		if got := Satisfies(s, allowed); got != want {
			t.Fatalf("Satisfies({%s}, %s) = %v, want %v", s, describe(allowed), got, want)
		}
		if want {
			hits++
		}
	}
	if hits < 500 {
		t.Errorf("only %d nodes were allowed", hits)
	}
}

// keepAll returns topologies that allow the segment's last pair.
func keepAll(s Segment) []corev1.TopologySelectorTerm {
	var e corev1.TopologySelectorLabelRequirement
	for key, value := range s.All() {
		e = corev1.TopologySelectorLabelRequirement{Key: key, Values: []string{value}}
	}
	return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{e}}}
}

// What is refused is refused before anything is made of it: a class of 170 kB could stand for 300 MiB. Allocations are
// counted, so it does not run in parallel.
func TestExpandCountsFirst(t *testing.T) { //nolint:paralleltest // see above
	var zones, racks, entries []string
	for i := range 141 {
		zones, racks = append(zones, fmt.Sprintf("z%d", i)), append(racks, fmt.Sprintf("r%d", i))
	}
	for i := range 60 {
		entries = append(entries, fmt.Sprintf("zone=%s|e%d,rack=%s", strings.Join(zones[1:], "|"), i, strings.Join(racks, "|")))
	}
	allowed := allow(entries...)
	if segments, err := Expand(allowed[:1]); err != nil || len(segments) != 141*141 {
		t.Errorf("one entry: %d segments, %v, want %d", len(segments), err, 141*141)
	}
	if _, err := Expand(allowed); err == nil || !strings.Contains(err.Error(), "more than 20000 terms") {
		t.Errorf("60 entries: error %v", err)
	}
	if allocs := testing.AllocsPerRun(3, func() { _, _ = Expand(allowed) }); allocs > 20 {
		t.Errorf("%.0f allocations to refuse it", allocs)
	}
	// At the bound, and one above it.
	for extra, wantErr := range map[int]bool{119: false, 120: true} {
		var values []string
		for i := range extra {
			values = append(values, fmt.Sprint(i))
		}
		if _, err := Expand(append(allowed[:1:1], allow("host="+strings.Join(values, "|"))...)); (err != nil) != wantErr {
			t.Errorf("%d terms: error %v, want one: %v", 141*141+extra, err, wantErr)
		}
	}
}
