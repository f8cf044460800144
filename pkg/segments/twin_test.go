package segments

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// Random events, and after each some claims: the index says what a walk over all nodes says.
func TestIndexAgreesWithNaiveTwin(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(17, 4))
	keys, values := []string{"host", "rack", "zone"}, []string{"a", "b", "c"}
	for range 40 {
		x, nodes, csiNodes := fed(t, keys...)
		l := listen(t)
		x.AddHandler(l.changed)
		twin := map[string]*topology.Member{}
		for range 60 {
			name := fmt.Sprintf("n%d", rnd.IntN(6))
			m := twin[name]
			if m == nil {
				m = &topology.Member{}
				twin[name] = m
			}
			switch rnd.IntN(6) {
			case 0:
				m.NodeExists, m.Labels = false, topology.Segment{}
				nodes.remove(node(name, ""))
			case 1, 2:
				var labels []string
				for _, key := range keys {
					if rnd.IntN(5) > 0 {
						labels = append(labels, key+"="+values[rnd.IntN(3)])
					}
				}
				m.NodeExists, m.Labels = true, one(strings.Join(labels, ","))
				nodes.apply(node(name, strings.Join(labels, ",")))
			case 3:
				m.CSINodeExists, m.Registered, m.Keys = false, false, nil
				csiNodes.remove(csiNode(name, "-"))
			default:
				chosen := "-"
				m.CSINodeExists, m.Registered, m.Keys = true, false, nil
				if rnd.IntN(5) > 0 {
					picked := slices.Clone(keys)
					rnd.Shuffle(3, func(i, j int) { picked[i], picked[j] = picked[j], picked[i] })
					picked = picked[:rnd.IntN(4)]
					chosen = strings.Join(picked, " ")
					m.Registered, m.Keys = true, topology.KeySet(picked)
				}
				csiNodes.apply(csiNode(name, chosen))
			}
			if rnd.IntN(3) == 0 {
				x.tellAll()
			}
			compareWithTwin(t, x, twin, name)
		}
		x.tellAll()
		if l.texts() != texts(x.Segments()) {
			t.Fatalf("the handler knows %s, there is %s", l.texts(), texts(x.Segments()))
		}
	}
}

func compareWithTwin(t *testing.T, x *Index, twin map[string]*topology.Member, name string) {
	t.Helper()
	var want []topology.Segment
	for _, m := range twin {
		if s, ok := m.Segment(); ok {
			want = append(want, s)
		}
	}
	if diff := cmp.Diff(texts(topology.Canonical(want)), texts(x.Segments())); diff != "" {
		t.Fatalf("segments (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(twin[name], new(x.Member(name)), cmp.AllowUnexported(topology.Segment{})); diff != "" {
		t.Fatalf("member %s (-want +got):\n%s", name, diff)
	}
	for _, r := range []topology.Request{{ClaimName: "data-web-1", Immediate: true}, {SelectedNode: name}, {SelectedNode: name, Strict: true}} {
		if m := twin[name]; r.SelectedNode != "" && (!m.NodeExists || !m.CSINodeExists) {
			continue // that is a question for the API server
		}
		wantReq, wantErr := topology.Require(r, naiveFacts(r, twin))
		got, err := x.Require(t.Context(), r)
		if r.SelectedNode != "" {
			if _, selectErr := twin[name].Select(name); selectErr != nil {
				wantReq, wantErr = nil, selectErr
			}
		}
		if (err != nil) != (wantErr != nil) {
			t.Fatalf("%+v: error %v, want %v", r, err, wantErr)
		}
		if !proto.Equal(wantReq, got) {
			t.Fatalf("%+v: got %v, want %v", r, got, wantReq)
		}
	}
}

// naiveFacts collects the terms in a walk over all nodes.
func naiveFacts(r topology.Request, twin map[string]*topology.Member) topology.Facts {
	var f topology.Facts
	if r.SelectedNode != "" {
		f.Keys = twin[r.SelectedNode].Keys
		f.Node, _ = twin[r.SelectedNode].Segment()
	}
	var terms []topology.Segment
	for _, m := range twin {
		keys := m.Keys
		if r.SelectedNode != "" {
			keys = f.Keys
		}
		registered := len(keys) > 0
		for _, key := range keys {
			registered = registered && slices.Contains(m.Keys, key)
		}
		if s, ok := m.Labels.Project(keys); ok && registered {
			terms = append(terms, s)
		}
	}
	f.Terms = topology.NewTerms(terms)
	return f
}
