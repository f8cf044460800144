package segments

import (
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// A handler that panics, also at once, keeps neither the others nor the index.
func TestAHandlerThatPanicsDoesNotKeepTheOthers(t *testing.T) {
	t.Parallel()
	x, nodes, csiNodes := fed(t, "zone")
	heard := ""
	x.AddHandler(func(_, _ []topology.Segment) { panic("a handler") })
	x.AddHandler(func(added, _ []topology.Segment) { heard += texts(added) })
	csiNodes.apply(csiNode("n1", "zone"))
	nodes.apply(node("n1", "zone=a"))
	x.tellAll()
	if !x.HasSynced() || heard != "{zone=a}" {
		t.Errorf("synced: %v, heard %q, want the segment", x.HasSynced(), heard)
	}
	x.AddHandler(func(_, _ []topology.Segment) { panic("a late handler") })
	csiNodes.apply(csiNode("n2", "zone"))
	nodes.apply(node("n2", "zone=b"))
	x.tellAll()
	if heard != "{zone=a}{zone=b}" {
		t.Errorf("heard %q, want both segments", heard)
	}
}

// What panics with the index locked leaves it unlocked. Of a list all other objects are taken over.
func TestAnObjectThatPanicsDoesNotKeepTheOthers(t *testing.T) {
	t.Parallel()
	x, nodes, csiNodes := fed(t, "zone")
	csiNodes.replace([]any{csiNode("n1", "zone"), csiNode("n2", "zone")})
	var none *metav1.PartialObjectMetadata // which has no name
	nodes.apply(none)
	nodes.replace([]any{none, node("n2", "zone=b")})
	nodes.remove(none)
	nodes.apply(node("n1", "zone=a"))
	if got := texts(x.Segments()); got != "{zone=a} {zone=b}" {
		t.Errorf("segments %q, want both", got)
	}
}

// A look at the API server that panics is an error for all who wait for it. The next look is made.
func TestALookThatPanicsIsAnError(t *testing.T) {
	t.Parallel()
	w := start(t, nil, nil)
	panics := 1
	w.client.PrependReactor("get", "csinodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		if panics > 0 {
			panics--
			panic("a look")
		}
		return false, nil, nil
	})
	for _, tc := range []struct {
		node string
		want bool // a panic
	}{{"bad", true}, {"bad", false}} {
		_, err := w.Require(t.Context(), topology.Request{SelectedNode: tc.node})
		if _, panicked := errors.AsType[*loop.PanicError](err); panicked != tc.want || err == nil {
			t.Errorf("error %v, want a panic: %v", err, tc.want)
		}
	}
}
