package topology

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestCompare(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		less, more string
	}{
		"fewer pairs first":                              {"zone=z", "host=a,zone=a"},
		"the first key decides":                          {"host=h1,zone=c", "host=h2,zone=a"},
		"bytes, not numbers":                             {"zone=zone10", "zone=zone2"},
		"key before value":                               {"host=z", "zone=a"},
		"a key that begins alike":                        {"zone=z", "zone.x=a"},
		"a value that begins alike, whatever follows it": {"a=v,z=1", "a=v1,b=1"},
		"an empty value":                                 {"zone=", "zone=a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			less, more := one(tc.less), one(tc.more)
			if Compare(less, more) >= 0 || Compare(more, less) <= 0 || Compare(less, less) != 0 {
				t.Errorf("want {%s} < {%s}", less, more)
			}
		})
	}
}

func TestCanonical(t *testing.T) {
	t.Parallel()
	given := []Segment{one("rack=x,zone=a"), one("zone=b"), one("zone=a"), one("zone=b"), {}}
	before := slices.Clone(given)
	got := Canonical(given)
	if diff := cmp.Diff([]string{"", "zone=a", "zone=b", "rack=x,zone=a"}, stringsOf(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !slices.Equal(before, given) {
		t.Error("the input was changed")
	}
}

func stringsOf(segments []Segment) []string {
	var out []string
	for _, s := range segments {
		out = append(out, s.String())
	}
	return out
}

func TestSegmentForms(t *testing.T) {
	t.Parallel()
	s := SegmentOf(map[string]string{"zone": "a", "host": "h1"})
	if s != one("host=h1,zone=a") || s.Len() != 2 || s.IsEmpty() || s.String() != "host=h1,zone=a" {
		t.Errorf("segment {%s} with %d pairs", s, s.Len())
	}
	want := map[string]string{"zone": "a", "host": "h1"}
	if diff := cmp.Diff([]map[string]string{want, want, want}, []map[string]string{s.Map(), s.CSI().GetSegments(), s.Selector().MatchLabels}); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	text, err := json.Marshal(struct{ Segment Segment }{s})
	if err != nil || string(text) != `{"Segment":"host=h1,zone=a"}` {
		t.Errorf("in JSON logs %s, %v", text, err)
	}
	var none Segment
	if none != SegmentOf(nil) || none.Len() != 0 || !none.IsEmpty() || none.Map() == nil || none.CSI() == nil {
		t.Error("the segment without pairs is the zero value")
	}
	if diff := cmp.Diff(&metav1.LabelSelector{}, none.Selector()); diff != "" {
		t.Errorf("selector of the segment without pairs (-want +got):\n%s", diff)
	}
	if value, ok := s.Get("zone"); value != "a" || !ok {
		t.Errorf("Get = %q, %v", value, ok)
	}
	if _, ok := s.Get("zon"); ok {
		t.Error("Get found a part of a key")
	}
}

func TestIn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		a, b string
		want bool
	}{
		"itself":             {"zone=a", "zone=a", true},
		"a part":             {"zone=a", "host=h,rack=r,zone=a", true},
		"the first":          {"host=h", "host=h,zone=a", true},
		"both ends":          {"host=h,zone=a", "host=h,rack=r,zone=a", true},
		"more":               {"host=h,zone=a", "zone=a", false},
		"another value":      {"zone=a", "host=h,zone=b", false},
		"the value's begin":  {"zone=a", "zone=ab", false},
		"nothing is in all":  {"", "zone=a", true},
		"all but nothing":    {"zone=a", "", false},
		"nothing in nothing": {"", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := one(tc.a), one(tc.b)
			if tc.a == "" {
				a = Segment{}
			}
			if tc.b == "" {
				b = Segment{}
			}
			if got := a.In(b); got != tc.want {
				t.Errorf("{%s} in {%s} = %v, want %v", a, b, got, tc.want)
			}
		})
	}
}

func TestProject(t *testing.T) {
	t.Parallel()
	s := one("host=h,rack=r,zone=a")
	for name, tc := range map[string]struct {
		keys   []string
		want   string
		wantOK bool
	}{
		"all":              {[]string{"host", "rack", "zone"}, "host=h,rack=r,zone=a", true},
		"some":             {[]string{"host", "zone"}, "host=h,zone=a", true},
		"the last":         {[]string{"zone"}, "zone=a", true},
		"none":             {nil, "", true},
		"missing":          {[]string{"host", "region"}, "", false},
		"beyond the last":  {[]string{"zone", "zone2"}, "", false},
		"more than it has": {[]string{"a", "host", "rack", "zone"}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := s.Project(tc.keys)
			if got.String() != tc.want || ok != tc.wantOK {
				t.Errorf("Project(%q) = {%s}, %v, want {%s}, %v", tc.keys, got, ok, tc.want, tc.wantOK)
			}
		})
	}
}

func TestSegmentOfTerm(t *testing.T) {
	t.Parallel()
	in := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	for name, tc := range map[string]struct {
		term   corev1.NodeSelectorTerm
		want   string
		wantOK bool
	}{
		"one value each":   {corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone", "a"), in("host", "h")}}, "host=h,zone=a", true},
		"several values":   {corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone", "a", "b")}}, "", false},
		"no value":         {corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone")}}, "", false},
		"another operator": {corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}}}, "", false},
		"match fields":     {corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{in("metadata.name", "n")}}, "", false},
		"no expressions":   {corev1.NodeSelectorTerm{}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := SegmentOfTerm(tc.term)
			if got.String() != tc.want || ok != tc.wantOK {
				t.Errorf("SegmentOfTerm = {%s}, %v, want {%s}, %v", got, ok, tc.want, tc.wantOK)
			}
		})
	}
}

func TestSegmentOfSelector(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		selector *metav1.LabelSelector
		want     string
		wantOK   bool
	}{
		"labels":       {&metav1.LabelSelector{MatchLabels: map[string]string{"zone": "a", "host": "h"}}, "host=h,zone=a", true},
		"nil labels":   {&metav1.LabelSelector{}, "", true},
		"empty labels": {&metav1.LabelSelector{MatchLabels: map[string]string{}, MatchExpressions: []metav1.LabelSelectorRequirement{}}, "", true},
		"expressions":  {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone", Operator: metav1.LabelSelectorOpExists}}}, "", false},
		"nothing":      {nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, ok := SegmentOfSelector(tc.selector)
			if got.String() != tc.want || ok != tc.wantOK {
				t.Errorf("SegmentOfSelector = {%s}, %v, want {%s}, %v", got, ok, tc.want, tc.wantOK)
			}
		})
	}
}

func TestKeySet(t *testing.T) {
	t.Parallel()
	given := []string{"zone", "rack", "zone"}
	if diff := cmp.Diff([]string{"rack", "zone"}, KeySet(given)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !slices.Equal(given, []string{"zone", "rack", "zone"}) || KeySet([]string{}) != nil {
		t.Error("the input was changed, or no keys are not nil")
	}
}

// Whatever bytes a driver reports, a segment is as good as the map it was made of.
func FuzzSegment(f *testing.F) {
	f.Add("zone", "a", "host", "h1")
	f.Add("", "", "\x00", "\x01")
	f.Add("\x01", "\x01\x01", "\x01\x02", "\x00\x00")
	f.Add("a", "\x00b", "a\x00", "b")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2 string) {
		m := map[string]string{k1: v1, k2: v2}
		s := SegmentOf(m)
		if diff := cmp.Diff(m, s.Map()); diff != "" || s.Len() != len(m) {
			t.Fatalf("%d pairs (-want +got):\n%s", s.Len(), diff)
		}
		if keys := slices.Sorted(maps.Keys(m)); !slices.Equal(keys, slices.Collect(func(yield func(string) bool) {
			for k := range s.All() {
				if !yield(k) {
					return
				}
			}
		})) {
			t.Fatalf("keys are not %q", keys)
		}
		a, b := SegmentOf(map[string]string{k1: v1}), SegmentOf(map[string]string{k2: v2})
		if want := naiveLess(a.Map(), b.Map()); sign(Compare(a, b)) != sign(want) || (a == b) != (want == 0) {
			t.Fatalf("Compare(%q, %q) = %d, want %d", a.encoded, b.encoded, Compare(a, b), want)
		}
		if !a.In(s) && k1 != k2 || a.In(b) != naiveIn(a.Map(), b.Map()) {
			t.Fatalf("%q in %q: %v", a.encoded, b.encoded, a.In(b))
		}
		if got, ok := s.Project([]string{k2}); !ok || got != b {
			t.Fatalf("projected on %q: %q, %v", k2, got.encoded, ok)
		}
	})
}

func sign(n int) int { return min(1, max(-1, n)) }

// Random lists: sorted, without duplicates, nothing lost; and Update is what making the list anew gives.
func TestTermsUpdateAgreesWithNaiveTwin(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 9))
	random := func() Segment {
		m := map[string]string{}
		for _, key := range testKeys[rnd.IntN(3):] {
			m[key] = pick(rnd, testValues)
		}
		return SegmentOf(m)
	}
	for range 3_000 {
		var list, added []Segment
		for range rnd.IntN(8) {
			list = append(list, random())
		}
		for range rnd.IntN(5) {
			added = append(added, random())
		}
		gone := map[Segment]bool{}
		for range rnd.IntN(4) {
			gone[random()] = true
		}
		before := NewTerms(list)
		snapshot := slices.Clone(before.Segments())
		after := before.Update(func(s Segment) bool { return gone[s] }, added)
		want := slices.DeleteFunc(slices.Clone(list), func(s Segment) bool { return gone[s] })
		want = Canonical(append(want, added...))
		if diff := cmp.Diff(stringsOf(want), stringsOf(after.Segments())); diff != "" {
			t.Fatalf("%v without %v with %v (-want +got):\n%s", list, gone, added, diff)
		}
		if !slices.Equal(snapshot, before.Segments()) {
			t.Fatal("Update changed its receiver")
		}
		for i, s := range after.Segments() {
			if SegmentOf(after.ring[i].GetSegments()) != s || after.ring[i] != after.ring[i+after.Len()] {
				t.Fatalf("CSI form %d of {%s} is %v", i, s, after.ring[i])
			}
			if at, ok := slices.BinarySearchFunc(snapshot, s, Compare); ok && before.ring[at] != after.ring[i] {
				t.Fatalf("{%s} was made anew", s)
			}
		}
	}
}

func TestNoTerms(t *testing.T) {
	t.Parallel()
	var none *Terms
	if none.Len() != 0 || none.Segments() != nil || none.firstIn(one("zone=a")) != -1 {
		t.Error("nil is not empty")
	}
	if got := NewTerms([]Segment{{}, one("zone=a"), {}}); got.Len() != 1 {
		t.Errorf("%d terms, want the one with pairs", got.Len())
	}
}

func TestMessagesAreShort(t *testing.T) {
	t.Parallel()
	var segments []Segment
	for i := range 5_000 {
		segments = append(segments, one("host=h"+strings.Repeat("x", i%7)+string(rune('a'+i%26))+strings.Repeat("y", i/7)))
	}
	values := strings.Repeat("v|", 500) + "v"
	_, err := Require(Request{SelectedNode: "n1", KeepNodeTopology: true, AllowedTopologies: allow(slices.Repeat([]string{"zone=" + values}, 100)...)},
		Facts{Node: one("host=z"), Terms: NewTerms(segments[:50])})
	if err == nil || len(err.Error()) > 4_000 || !strings.Contains(err.Error(), "and ") {
		t.Errorf("error of %d bytes", len(err.Error()))
	}
}
