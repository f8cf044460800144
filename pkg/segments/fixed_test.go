package segments

import (
	"context"
	"errors"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// source is what both kinds of segments can do; cmd hands either of them on.
type source interface {
	Require(ctx context.Context, r topology.Request) (*csi.TopologyRequirement, error)
	Segments() []topology.Segment
	AddHandler(changed func(added, removed []topology.Segment))
	HasSynced() bool
	Run(ctx context.Context)
	KeysOf(node string) []string
	Member(node string) topology.Member
}

var (
	_ source = (*Index)(nil)
	_ source = (*Fixed)(nil)
)

// S5, R28: the fixed segment is the same value that an affinity of that place gives, whatever order its keys came in.
func TestFixedSegment(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		local *csi.Topology
		want  string
	}{
		"two keys":    {&csi.Topology{Segments: pairs("zone=a,host=h1")}, "{host=h1,zone=a}"},
		"no segments": {&csi.Topology{}, "{}"},
		"no topology": {nil, "{}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := NewFixed("n1", tc.local)
			l := listen(t)
			f.AddHandler(l.changed)
			if diff := cmp.Diff([]string{tc.want, tc.want}, []string{texts(f.Segments()), l.texts()}); diff != "" || !f.HasSynced() {
				t.Errorf("segments, and what the handler was told, synced %v (-want +got):\n%s", f.HasSynced(), diff)
			}
		})
	}
	affinity := topology.Affinity([]*csi.Topology{{Segments: pairs("zone=a,host=h1")}})
	fromPV, ok := topology.SegmentOfTerm(affinity.Required.NodeSelectorTerms[0])
	if own := NewFixed("n1", &csi.Topology{Segments: pairs("host=h1,zone=a")}).Segments()[0]; !ok || fromPV != own {
		t.Errorf("{%s} of a volume is not the node's own {%s}", fromPV, own)
	}
}

func TestFixedRequire(t *testing.T) {
	t.Parallel()
	allowed := func(value string) []corev1.TopologySelectorTerm {
		return []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "zone", Values: []string{value}}}}}
	}
	local := &csi.Topology{Segments: pairs("zone=a,host=h1")}
	for name, tc := range map[string]struct {
		local    *csi.Topology
		r        topology.Request
		want     string
		wantErr  bool
		wantGone bool
	}{
		"own node":                  {local: local, r: topology.Request{SelectedNode: "n1"}, want: "{host=h1,zone=a}"},
		"own node, strict":          {local: local, r: topology.Request{SelectedNode: "n1", Strict: true}, want: "{host=h1,zone=a}"},
		"own node, allowed":         {local: local, r: topology.Request{SelectedNode: "n1", AllowedTopologies: allowed("a")}, want: "{zone=a}"},
		"own node, allowed, strict": {local: local, r: topology.Request{SelectedNode: "n1", Strict: true, AllowedTopologies: allowed("a")}, want: "{host=h1,zone=a}"},
		"own node, allowed, keep":   {local: local, r: topology.Request{SelectedNode: "n1", KeepNodeTopology: true, AllowedTopologies: allowed("a")}, want: "{host=h1,zone=a}"},
		"own node outside":          {local: local, r: topology.Request{SelectedNode: "n1", AllowedTopologies: allowed("b")}, wantErr: true},
		"no node":                   {local: local, r: topology.Request{ClaimName: "c", Immediate: true}, want: "{host=h1,zone=a}"},
		"no node, not immediate":    {local: local, r: topology.Request{ClaimName: "c"}},
		"another node":              {local: local, r: topology.Request{SelectedNode: "n2"}, wantErr: true, wantGone: true},
		"no keys":                   {r: topology.Request{SelectedNode: "n1"}, wantErr: true},
		"no keys, no node":          {r: topology.Request{ClaimName: "c", Immediate: true}, wantErr: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := NewFixed("n1", tc.local).Require(t.Context(), tc.r)
			if (err != nil) != tc.wantErr || errors.Is(err, topology.ErrNodeGone) != tc.wantGone {
				t.Fatalf("error %v, want one: %v, ErrNodeGone: %v", err, tc.wantErr, tc.wantGone)
			}
			var preferred []topology.Segment
			for _, s := range got.GetPreferred() {
				preferred = append(preferred, topology.SegmentOf(s.GetSegments()))
			}
			if diff := cmp.Diff(tc.want, texts(preferred)); diff != "" {
				t.Errorf("preferred (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFixedRunsUntilTheEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); NewFixed("n1", nil).Run(ctx) }()
	select {
	case <-ended:
		t.Error("Run returned by itself")
	default:
	}
	cancel()
	<-ended
}
