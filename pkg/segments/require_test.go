package segments

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// P10, TP6: what the caches do not show is asked for once before it is called gone.
func TestSelectedNodeNotInTheCaches(t *testing.T) {
	t.Parallel()
	w := start(t,
		[]*metav1.PartialObjectMetadata{node("n1", "zone=a"), node("n2", "zone=b"), node("n3", "zone=c")},
		[]*storagev1.CSINode{csiNode("n1", "zone"), csiNode("n2", "zone"), csiNode("n4", "zone")})
	// late is there, but no event of it has come.
	hide := func(obj runtime.Object) clienttesting.ReactionFunc {
		return func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.(clienttesting.GetAction).GetName() == "late", obj, nil //nolint:forcetypeassert // it reacts to get
		}
	}
	w.client.PrependReactor("get", "csinodes", hide(csiNode("late", "zone")))
	w.meta.PrependReactor("get", "nodes", hide(node("late", "zone=d")))
	for name, tc := range map[string]struct {
		r        topology.Request
		want     string
		wantGone bool
	}{
		"neither":                             {r: topology.Request{SelectedNode: "no"}, wantGone: true},
		"no CSINode":                          {r: topology.Request{SelectedNode: "n3"}, wantGone: true},
		"no Node":                             {r: topology.Request{SelectedNode: "n4"}, wantGone: true},
		"a hint":                              {r: topology.Request{SelectedNode: "no", Hint: pairs("zone=x,rack=r")}, want: "{zone=x} {zone=a} {zone=b}"},
		"a hint, strict":                      {r: topology.Request{SelectedNode: "no", Strict: true, Hint: pairs("zone=x,rack=r")}, want: "{zone=x}"},
		"a hint for a Node that is gone":      {r: topology.Request{SelectedNode: "n4", Strict: true, Hint: pairs("zone=x")}, want: "{zone=x}"},
		"a hint of none of the driver's keys": {r: topology.Request{SelectedNode: "n4", Strict: true, Hint: pairs("rack=x")}, wantGone: true},
		"a hint is not needed":                {r: topology.Request{SelectedNode: "n1", Strict: true, Hint: pairs("zone=x")}, want: "{zone=a}"},
		"only late":                           {r: topology.Request{SelectedNode: "late"}, want: "{zone=d} {zone=a} {zone=b}"},
		"only late, strict":                   {r: topology.Request{SelectedNode: "late", Strict: true}, want: "{zone=d}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := w.Require(t.Context(), tc.r)
			if errors.Is(err, topology.ErrNodeGone) != tc.wantGone || (err != nil) != tc.wantGone {
				t.Fatalf("error %v, want ErrNodeGone: %v", err, tc.wantGone)
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

// An API server that does not answer is no proof that a node is gone, and a node that is known costs no question.
func TestSelectedNodeWhenTheServerIsAway(t *testing.T) {
	t.Parallel()
	w := start(t, []*metav1.PartialObjectMetadata{node("n1", "zone=a"), node("n2", "zone=b")}, []*storagev1.CSINode{csiNode("n1", "zone")})
	w.client.PrependReactor("get", "csinodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("away")
	})
	if _, err := w.Require(t.Context(), topology.Request{SelectedNode: "n2"}); err == nil || errors.Is(err, topology.ErrNodeGone) || !apierrors.IsServiceUnavailable(err) {
		t.Errorf("error %v, want the server's", err)
	}
	before := gets(&w.client.Fake) + gets(&w.meta.Fake)
	if _, err := w.Require(t.Context(), topology.Request{SelectedNode: "n1"}); err != nil {
		t.Error(err)
	}
	if after := gets(&w.client.Fake) + gets(&w.meta.Fake); after != before {
		t.Errorf("%d requests for a node that is known", after-before)
	}
}

// A question about a node is given up when its caller is stopped, before and while it is being answered.
func TestRequireEndsWithItsContext(t *testing.T) {
	t.Parallel()
	x, _, _ := fed(t) // nobody answers questions
	stopped := errors.New("stopped")
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := x.Require(ctx, topology.Request{SelectedNode: "n1"})
		ended <- err
	}()
	<-x.lookups // it is taken and not answered
	stop(stopped)
	if err := <-ended; !errors.Is(err, stopped) || errors.Is(err, topology.ErrNodeGone) {
		t.Errorf("error %v while the node is read, want %v", err, stopped)
	}
	if _, err := x.Require(ctx, topology.Request{SelectedNode: "n1"}); !errors.Is(err, stopped) {
		t.Errorf("error %v before that, want %v", err, stopped)
	}
}

func TestRequireBeforeAndAfterRun(t *testing.T) {
	t.Parallel()
	x, err := New(Config{Driver: driver, Client: start(t, nil, nil).client, Metadata: start(t, nil, nil).meta})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []topology.Request{{SelectedNode: "n1"}, {ClaimName: "c", Immediate: true}} {
		if _, err := x.Require(t.Context(), r); err == nil || errors.Is(err, topology.ErrNodeGone) {
			t.Errorf("before Run: error %v, want one that is tried again", err)
		}
	}
	if got, err := x.Require(t.Context(), topology.Request{ClaimName: "c"}); got != nil || err != nil {
		t.Errorf("no requirement wanted: %v, %v", got, err)
	}
	ended, _, _ := fed(t)
	close(ended.ended)
	if _, err := ended.Require(t.Context(), topology.Request{SelectedNode: "n1"}); !errors.Is(err, errEnded) {
		t.Errorf("after Run: error %v, want %v", err, errEnded)
	}
	if _, err := New(Config{}); err == nil {
		t.Error("an empty Config is accepted")
	}
}

// A claim that comes while labels are being read for a new key waits for them; it is not sent to a part of the cluster.
func TestRequireWhileLabelsAreRead(t *testing.T) {
	t.Parallel()
	x, nodes, csiNodes := fed(t, "zone")
	nodes.apply(node("n1", "zone=a,rack=r"))
	csiNodes.apply(csiNode("n1", "zone rack"))
	if _, err := x.Require(t.Context(), topology.Request{ClaimName: "c", Immediate: true}); err == nil || !strings.Contains(err.Error(), "being read") {
		t.Errorf("error %v, want one that says that labels are being read", err)
	}
	x.nodeStore(x.widen()).replace([]any{node("n1", "zone=a,rack=r")})
	if got, err := x.Require(t.Context(), topology.Request{ClaimName: "c", Immediate: true}); err != nil || len(got.GetRequisite()) != 1 {
		t.Errorf("requirement %v, %v", got, err)
	}
}

// A claim without a selected node needs the labels for the keys of every node, one with a selected node just those for
// its keys.
func TestRequireWhileLabelsOfOtherNodesAreRead(t *testing.T) {
	t.Parallel()
	x, nodes, csiNodes := fed(t, "zone")
	nodes.replace([]any{node("n1", "zone=a"), node("n2", "zone=b,rack=r")})
	csiNodes.replace([]any{csiNode("n1", "zone"), csiNode("n2", "zone rack")})
	if _, err := x.Require(t.Context(), topology.Request{ClaimName: "c", Immediate: true}); err == nil || !strings.Contains(err.Error(), "being read") {
		t.Errorf("no selected node: error %v, want one that says that labels are being read", err)
	}
	got, err := x.Require(t.Context(), topology.Request{SelectedNode: "n1"})
	if err != nil || requisite(got) != "{zone=a} {zone=b}" {
		t.Errorf("a selected node: requisite %s, %v", requisite(got), err)
	}
}

// A node without a CSINode is gone, whatever its Node says: that is not asked for.
func TestALostNodeCostsOneRead(t *testing.T) {
	t.Parallel()
	w := start(t, []*metav1.PartialObjectMetadata{node("n1", "zone=a")}, []*storagev1.CSINode{csiNode("n1", "zone")})
	if _, err := w.Require(t.Context(), topology.Request{SelectedNode: "gone"}); !errors.Is(err, topology.ErrNodeGone) {
		t.Errorf("error %v, want ErrNodeGone", err)
	}
	if csiNodes, nodes := gets(&w.client.Fake), gets(&w.meta.Fake); csiNodes != 1 || nodes != 0 {
		t.Errorf("%d and %d reads, want one of the CSINode", csiNodes, nodes)
	}
}

// Between two tries a reflector waits ever longer, and does not see that its context has ended.
func TestIndexEndsSoonWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var stopped time.Time
		server := fixture.Away("csinodes", func() { stopped = time.Now(); cancel() })
		client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://away", Transport: server})
		if err != nil {
			t.Fatal(err)
		}
		x, err := New(Config{Driver: driver, Client: client, Metadata: metadatafake.NewSimpleMetadataClient(scheme(t))})
		if err != nil {
			t.Fatal(err)
		}
		x.Run(ctx)
		if took := time.Since(stopped); took > time.Second {
			t.Errorf("took %s to stop", took)
		}
		time.Sleep(time.Hour) // until what was left behind has noticed
	})
}
