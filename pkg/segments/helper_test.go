package segments

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

const driver = "csi.example.com"

// pairs reads "zone=a,host=h1".
func pairs(text string) map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		if key, value, ok := strings.Cut(part, "="); ok {
			out[key] = value
		}
	}
	return out
}

func one(text string) topology.Segment { return topology.SegmentOf(pairs(text)) }

func node(name, labels string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: pairs(labels)},
	}
}

// csiNode returns a CSINode with another driver and, unless keys is "-", with ours.
func csiNode(name, keys string) *storagev1.CSINode {
	n := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.Drivers = []storagev1.CSINodeDriver{{Name: "other.example.com", NodeID: name, TopologyKeys: []string{"other"}}}
	if keys != "-" {
		n.Spec.Drivers = append(n.Spec.Drivers, storagev1.CSINodeDriver{Name: driver, NodeID: name, TopologyKeys: strings.Fields(keys)})
	}
	return n
}

// texts lists segments as one string, for comparing.
func texts(segments []topology.Segment) string {
	var out []string
	for _, s := range segments {
		out = append(out, "{"+s.String()+"}")
	}
	return strings.Join(out, " ")
}

// fed returns an index without clients whose stores a test fills by hand, with its node store reading these keys.
func fed(tb testing.TB, keys ...string) (x *Index, nodes, csiNodes store) {
	tb.Helper()
	x, err := New(Config{Driver: driver, Client: fake.NewClientset(), Metadata: metadatafake.NewSimpleMetadataClient(scheme(tb))})
	if err != nil {
		tb.Fatal(err)
	}
	read := map[string]bool{}
	for _, key := range keys {
		read[key] = true
	}
	x.watched = read
	nodes, csiNodes = x.nodeStore(read), x.csiNodeStore()
	nodes.replace(nil)
	csiNodes.replace(nil)
	return x, nodes, csiNodes
}

func scheme(tb testing.TB) *runtime.Scheme {
	tb.Helper()
	s := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(s); err != nil {
		tb.Fatal(err)
	}
	return s
}

// world is an index that runs against fake clients.
type world struct {
	*Index
	client *fake.Clientset
	meta   *metadatafake.FakeMetadataClient
}

// start runs an index over these objects and waits until it has synced and watches.
func start(t *testing.T, nodes []*metav1.PartialObjectMetadata, csiNodes []*storagev1.CSINode) *world {
	t.Helper()
	w := &world{client: fake.NewClientset(), meta: metadatafake.NewSimpleMetadataClient(scheme(t))}
	for _, n := range csiNodes {
		w.addCSINode(t, n)
	}
	for _, n := range nodes {
		w.addNode(t, n)
	}
	var err error
	if w.Index, err = New(Config{Driver: driver, Client: w.client, Metadata: w.meta}); err != nil {
		t.Fatal(err)
	}
	logger, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logger))
	var running sync.WaitGroup
	running.Go(func() { w.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	eventually(t, "the index has synced", w.HasSynced)
	eventually(t, "both watches are there", func() bool { return watches(&w.client.Fake) == 1 && watches(&w.meta.Fake) == 1 })
	return w
}

// watches counts the watches that were begun. The fake shows a watch only when it is in place.
func watches(f *clienttesting.Fake) int {
	return len(slices.DeleteFunc(f.Actions(), func(a clienttesting.Action) bool { return a.GetVerb() != "watch" }))
}

func gets(f *clienttesting.Fake) int {
	return len(slices.DeleteFunc(f.Actions(), func(a clienttesting.Action) bool { return a.GetVerb() != "get" }))
}

func (w *world) addNode(t *testing.T, n *metav1.PartialObjectMetadata) {
	t.Helper()
	if _, err := w.meta.Resource(nodesResource).(metadatafake.MetadataClient).CreateFake(n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) updateNode(t *testing.T, n *metav1.PartialObjectMetadata) {
	t.Helper()
	if _, err := w.meta.Resource(nodesResource).(metadatafake.MetadataClient).UpdateFake(n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) removeNode(t *testing.T, name string) {
	t.Helper()
	if err := w.meta.Resource(nodesResource).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) addCSINode(t *testing.T, n *storagev1.CSINode) {
	t.Helper()
	if _, err := w.client.StorageV1().CSINodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) updateCSINode(t *testing.T, n *storagev1.CSINode) {
	t.Helper()
	if _, err := w.client.StorageV1().CSINodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) removeCSINode(t *testing.T, name string) {
	t.Helper()
	if err := w.client.StorageV1().CSINodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

// listener is a handler that keeps the set it was told and objects to whatever does not fit it.
type listener struct {
	t     *testing.T
	mu    sync.Mutex
	known map[topology.Segment]bool
	calls int
}

func listen(t *testing.T) *listener { return &listener{t: t, known: map[topology.Segment]bool{}} }

func (l *listener) changed(added, removed []topology.Segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if len(added)+len(removed) == 0 {
		l.t.Error("told of no change")
	}
	for _, s := range removed {
		if !l.known[s] {
			l.t.Errorf("told that {%s} went, which was not there", s)
		}
		delete(l.known, s)
	}
	for _, s := range added {
		if l.known[s] {
			l.t.Errorf("told that {%s} came, which was there", s)
		}
		l.known[s] = true
	}
}

func (l *listener) texts() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return texts(slices.SortedFunc(maps.Keys(l.known), topology.Compare))
}
