package topology

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
)

// zones allows n zones, of this prefix.
func zones(prefix string, n int) []corev1.TopologySelectorTerm {
	var values []string
	for i := range n {
		values = append(values, fmt.Sprintf("%s%05d", prefix, i))
	}
	return allow("zone=" + strings.Join(values, "|"))
}

// first returns the address of the first requisite term for a claim without a selected node.
func first(tb testing.TB, e *Expansions, allowed []corev1.TopologySelectorTerm) **csi.Topology {
	tb.Helper()
	got, err := Require(Request{ClaimName: "c", AllowedTopologies: allowed}, Facts{Expansions: e})
	if err != nil {
		tb.Fatal(err)
	}
	return &got.GetRequisite()[0]
}

// Claims of one class share the terms of its allowedTopologies, and so do claims of a class that was read again.
func TestExpandedTermsAreShared(t *testing.T) {
	t.Parallel()
	var e Expansions
	want := first(t, &e, zones("a", 3))
	if first(t, &e, zones("a", 3)) != want {
		t.Error("the same class was expanded twice")
	}
	for name, other := range map[string][]corev1.TopologySelectorTerm{
		"another value": zones("b", 3), "one value more": zones("a", 4),
		"another key": allow("rack=a00000|a00001|a00002"), "an entry more": append(zones("a", 3), zones("b", 1)...),
	} {
		if first(t, &e, other) == want {
			t.Errorf("%s: got the terms of another class", name)
		}
	}
	if first(t, &e, zones("a", 3)) != want {
		t.Error("another class replaced it")
	}
	if _, err := Require(Request{ClaimName: "c", AllowedTopologies: zones("a", MaxTerms+1)}, Facts{Expansions: &e}); err == nil {
		t.Error("too many terms are no error")
	}
}

// Another claim of the class costs next to nothing. Allocations are counted, so it does not run in parallel.
func TestExpandedTermsCostNothing(t *testing.T) { //nolint:paralleltest // see above
	var e Expansions
	allowed := zones("a", 10_000)
	first(t, &e, allowed)
	if allocs := testing.AllocsPerRun(3, func() { first(t, &e, allowed) }); allocs > 10 {
		t.Errorf("%.0f allocations for another claim of a class with 10,000 terms", allocs)
	}
}

// What is remembered is bounded, and what is in use stays.
func TestExpansionsForget(t *testing.T) {
	t.Parallel()
	var e Expansions
	kept := zones("kept", 3)
	want := first(t, &e, kept)
	for i := range 3 * maxExpansions {
		first(t, &e, zones(fmt.Sprint(i), 2))
		if first(t, &e, kept) != want {
			t.Fatal("the list in use was forgotten")
		}
	}
	if len(e.recent) != maxExpansions {
		t.Errorf("%d lists remembered, want %d", len(e.recent), maxExpansions)
	}
	for i := range 3 {
		first(t, &e, zones(fmt.Sprint("long", i), maxExpandedTerms-2))
		total := 0
		for _, known := range e.recent {
			total += known.terms.Len()
		}
		if total > maxExpandedTerms || len(e.recent) != 1 {
			t.Errorf("%d lists with %d terms remembered, want the latest alone", len(e.recent), total)
		}
	}
}

func TestExpandConcurrently(t *testing.T) {
	t.Parallel()
	var e Expansions
	var running sync.WaitGroup
	for i := range 8 {
		running.Go(func() {
			for j := range 50 {
				n := 1 + (i+j)%20
				if got, err := e.terms(zones("z", n)); err != nil || got.Len() != n {
					t.Errorf("%d terms, %v, want %d", got.Len(), err, n)
				}
			}
		})
	}
	running.Wait()
}
