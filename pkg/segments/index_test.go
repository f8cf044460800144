package segments

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// What a step of a story does to an index that is fed by hand.
type step func(nodes, csiNodes store)

func putNode(name, labels string) step  { return func(n, _ store) { n.apply(node(name, labels)) } }
func dropNode(name string) step         { return func(n, _ store) { n.remove(node(name, "")) } }
func putCSINode(name, keys string) step { return func(_, c store) { c.apply(csiNode(name, keys)) } }
func dropCSINode(name string) step      { return func(_, c store) { c.remove(csiNode(name, "-")) } }

func TestSegments(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		steps []step
		want  string
	}{
		"nothing":       {nil, ""},
		"node first":    {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone")}, "{zone=a}"},
		"CSINode first": {[]step{putCSINode("n1", "zone"), putNode("n1", "zone=a")}, "{zone=a}"},
		"equal segments are one": {[]step{
			putNode("n1", "zone=a"), putCSINode("n1", "zone"), putNode("n2", "zone=a"), putCSINode("n2", "zone"),
		}, "{zone=a}"},
		"the order of keys means nothing": {[]step{
			putNode("n1", "zone=a,rack=r"), putCSINode("n1", "zone rack"), putNode("n2", "zone=a,rack=r"), putCSINode("n2", "rack zone"),
		}, "{rack=r,zone=a}"},
		"a key twice is a key once": {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone zone")}, "{zone=a}"},
		"different key sets stand side by side": {[]step{
			putNode("n1", "zone=a,rack=r,host=h"), putCSINode("n1", "zone rack"), putNode("n2", "host=h1"), putCSINode("n2", "host"),
		}, "{host=h1} {rack=r,zone=a}"},
		"without keys it is everywhere": {[]step{putNode("n1", "zone=a"), putCSINode("n1", "")}, "{}"},
		"not registered":                {[]step{putNode("n1", "zone=a"), putCSINode("n1", "-")}, ""},
		"Node alone":                    {[]step{putNode("n1", "zone=a")}, ""},
		"CSINode alone":                 {[]step{putCSINode("n1", "zone")}, ""},
		"a label is not there yet":      {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone rack")}, ""},
		"an empty value is a value":     {[]step{putNode("n1", "zone="), putCSINode("n1", "zone")}, "{zone=}"},
		"a label came later":            {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone rack"), putNode("n1", "zone=a,rack=r")}, "{rack=r,zone=a}"},
		"a label went":                  {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), putNode("n1", "rack=r")}, ""},
		"a label went and came back":    {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), putNode("n1", ""), putNode("n1", "zone=a")}, "{zone=a}"},
		"a label changed":               {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), putNode("n1", "zone=b")}, "{zone=b}"},
		"the Node went":                 {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), dropNode("n1")}, ""},
		"the CSINode went":              {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), dropCSINode("n1")}, ""},
		"the driver went":               {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), putCSINode("n1", "-")}, ""},
		"the driver went and came back": {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), putCSINode("n1", "-"), putCSINode("n1", "zone")}, "{zone=a}"},
		"other keys":                    {[]step{putNode("n1", "zone=a,rack=r"), putCSINode("n1", "zone"), putCSINode("n1", "rack")}, "{rack=r}"},
		"one of two nodes of it went":   {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), putNode("n2", "zone=a"), putCSINode("n2", "zone"), dropNode("n1")}, "{zone=a}"},
		"both nodes of it went":         {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), putNode("n2", "zone=a"), putCSINode("n2", "zone"), dropNode("n1"), dropCSINode("n2")}, ""},
		"deleting what was not there":   {[]step{dropNode("n1"), dropCSINode("n2")}, ""},
		"told of the same thing twice":  {[]step{putNode("n1", "zone=a"), putNode("n1", "zone=a"), putCSINode("n1", "zone"), putCSINode("n1", "zone"), dropNode("n1")}, ""},
		"a list without the Node":       {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), func(n, _ store) { n.replace([]any{node("n2", "zone=b")}) }}, ""},
		"a list without the CSINode":    {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), func(_, c store) { c.replace(nil) }}, ""},
		"a list with another label":     {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), func(n, _ store) { n.replace([]any{node("n1", "zone=b")}) }}, "{zone=b}"},
		"a list with what is known":     {[]step{putNode("n1", "zone=a"), putCSINode("n1", "zone"), func(n, c store) { n.replace([]any{node("n1", "zone=a")}); c.replace([]any{csiNode("n1", "zone")}) }}, "{zone=a}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, nodes, csiNodes := fed(t, "zone", "rack", "host")
			x.tellAll()
			l := listen(t)
			x.AddHandler(l.changed)
			for _, do := range tc.steps {
				do(nodes, csiNodes)
				x.tellAll()
			}
			if diff := cmp.Diff([]string{tc.want, tc.want}, []string{texts(x.Segments()), l.texts()}); diff != "" {
				t.Errorf("segments, and what the handler was told (-want +got):\n%s", diff)
			}
		})
	}
}

// What came and went between two looks is no change: nobody deletes objects for it.
func TestChangesAreNet(t *testing.T) {
	t.Parallel()
	x, nodes, csiNodes := fed(t, "zone")
	l := listen(t)
	x.AddHandler(l.changed)
	nodes.apply(node("n1", "zone=a"))
	csiNodes.apply(csiNode("n1", "zone"))
	x.tellAll()
	csiNodes.apply(csiNode("n1", "-"))
	csiNodes.apply(csiNode("n1", "zone"))
	nodes.apply(node("n2", "zone=b"))
	nodes.remove(node("n2", ""))
	x.tellAll()
	if l.calls != 1 || l.texts() != "{zone=a}" {
		t.Errorf("%d calls, told {%s}, want one call with zone=a", l.calls, l.texts())
	}
}

// The handler that comes late learns everything at once, and what nobody was told yet once.
func TestHandlerAddedLate(t *testing.T) {
	t.Parallel()
	x, nodes, csiNodes := fed(t, "zone")
	early, late, beforeSync := listen(t), listen(t), listen(t)
	x.AddHandler(beforeSync.changed)
	nodes.apply(node("n1", "zone=a"))
	csiNodes.apply(csiNode("n1", "zone"))
	if beforeSync.calls != 0 || x.HasSynced() {
		t.Errorf("told %d times before anybody looked, HasSynced %v", beforeSync.calls, x.HasSynced())
	}
	x.tellAll()
	if !x.HasSynced() {
		t.Error("not synced although everybody was told")
	}
	x.AddHandler(early.changed)
	nodes.apply(node("n2", "zone=b"))
	csiNodes.apply(csiNode("n2", "zone"))
	x.AddHandler(late.changed)
	x.tellAll()
	for name, l := range map[string]*listener{"before sync": beforeSync, "early": early, "late": late} {
		if got := l.texts(); got != "{zone=a} {zone=b}" {
			t.Errorf("%s was told %s", name, got)
		}
	}
	if late.calls != 1 {
		t.Errorf("the late one was told %d times, want once", late.calls)
	}
}

// Nobody is told before the labels are read for every key that was registered at the start: a part of the segments would
// be taken for all of them, and the objects of the others for obsolete.
func TestNobodyIsToldBeforeAllLabelsAreRead(t *testing.T) {
	t.Parallel()
	x, nodes, csiNodes := fed(t, "zone")
	l := listen(t)
	x.AddHandler(l.changed)
	csiNodes.replace([]any{csiNode("n1", "zone"), csiNode("n2", "zone rack")})
	nodes.replace([]any{node("n1", "zone=a"), node("n2", "zone=b,rack=r")})
	x.tellAll()
	if l.calls != 0 || x.HasSynced() {
		t.Errorf("told {%s}, HasSynced %v, before the labels rack are read", l.texts(), x.HasSynced())
	}
	x.nodeStore(x.widen()).replace([]any{node("n1", "zone=a"), node("n2", "zone=b,rack=r")})
	x.tellAll()
	if want := "{zone=a} {rack=r,zone=b}"; l.calls != 1 || l.texts() != want || !x.HasSynced() {
		t.Errorf("told {%s} in %d calls, HasSynced %v, want %s in one", l.texts(), l.calls, x.HasSynced(), want)
	}
}

// R3: what an event brings is only read.
func TestEventsAreNotChanged(t *testing.T) {
	t.Parallel()
	_, nodes, csiNodes := fed(t, "zone", "rack")
	n, c := node("n1", "zone=a,rack=r,arch=amd64"), csiNode("n1", "zone rack")
	wantNode, wantCSINode := n.DeepCopy(), c.DeepCopy()
	nodes.apply(n)
	csiNodes.apply(c)
	csiNodes.apply(c)
	for _, s := range []store{nodes, csiNodes} {
		for _, obj := range []any{n, c} {
			if _, err := s.trim(obj); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff(wantNode, n) + cmp.Diff(wantCSINode, c); diff != "" {
		t.Errorf("objects were changed (-want +got):\n%s", diff)
	}
}

// What a stream of objects is cut down to, while it is one: the name, and what is read of it.
func TestTrim(t *testing.T) {
	t.Parallel()
	_, nodes, csiNodes := fed(t, "zone")
	n, c := node("n1", "zone=a,arch=amd64"), csiNode("n1", "zone rack")
	n.ResourceVersion, n.Annotations, c.ResourceVersion, c.Annotations = "7", pairs("a=b"), "8", pairs("a=b")
	n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
	gotNode, err := nodes.trim(n)
	if err != nil {
		t.Fatal(err)
	}
	gotCSINode, err := csiNodes.trim(c)
	if err != nil {
		t.Fatal(err)
	}
	wantNode := node("n1", "zone=a")
	wantNode.ResourceVersion = "7"
	wantCSINode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1", ResourceVersion: "8"}}
	wantCSINode.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driver, TopologyKeys: []string{"zone", "rack"}}}
	if diff := cmp.Diff([]any{wantNode, wantCSINode}, []any{gotNode, gotCSINode}); diff != "" {
		t.Errorf("trimmed (-want +got):\n%s", diff)
	}
}

// Claims share what they can: the same terms by address, as long as none comes or goes.
func TestRequirementsAreShared(t *testing.T) {
	t.Parallel()
	x, nodes, csiNodes := fed(t, "zone")
	for i := range 4 {
		nodes.apply(node(fmt.Sprintf("n%d", i), fmt.Sprintf("zone=z%d", i%3)))
		csiNodes.apply(csiNode(fmt.Sprintf("n%d", i), "zone"))
	}
	require := func(r topology.Request) []any {
		t.Helper()
		got, err := x.Require(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		var addresses []any
		for _, s := range got.GetRequisite() {
			addresses = append(addresses, s)
		}
		return addresses
	}
	first := require(topology.Request{ClaimName: "a", Immediate: true})
	nodes.apply(node("n3", "zone=z1")) // still a zone that is known
	if second := require(topology.Request{SelectedNode: "n2"}); !slices.Equal(first, second) {
		t.Error("nothing came or went, but the terms were made anew")
	}
	nodes.apply(node("n4", "zone=z4"))
	csiNodes.apply(csiNode("n4", "zone"))
	third := require(topology.Request{ClaimName: "b", Immediate: true})
	if len(third) != 4 || !slices.Equal(first, third[:3]) {
		t.Errorf("one zone came: %d terms, the old ones kept: %v", len(third), slices.Equal(first, third[:min(3, len(third))]))
	}
	nodes.remove(node("n4", ""))
	if fourth := require(topology.Request{ClaimName: "b", Immediate: true}); !slices.Equal(first, fourth) {
		t.Error("a zone went, but the others were made anew")
	}
}

// The whole against fake clients: lists at the start, a driver that comes late with keys nobody watched for,
// labels that go and come back, nodes that go.
func TestIndexFollowsTheCluster(t *testing.T) {
	t.Parallel()
	w := start(t, []*metav1.PartialObjectMetadata{node("n1", "zone=a,rack=r1,arch=amd64"), node("n2", "zone=b,rack=r2")}, nil)
	l := listen(t)
	w.AddHandler(l.changed)
	told := func(want string) {
		t.Helper()
		eventually(t, "the handler knows "+want, func() bool { return l.texts() == want })
		if got := texts(w.Segments()); got != want {
			t.Errorf("segments %s, want %s", got, want)
		}
	}
	told("")
	w.addCSINode(t, csiNode("n1", "zone"))
	told("{zone=a}")
	eventually(t, "Nodes are watched again, for zones", func() bool { return watches(&w.meta.Fake) == 2 })
	w.addCSINode(t, csiNode("n2", "zone"))
	told("{zone=a} {zone=b}")
	if n := watches(&w.meta.Fake); n != 2 {
		t.Errorf("%d watches of Nodes, want no more for keys that are known", n)
	}
	w.updateCSINode(t, csiNode("n2", "zone rack"))
	told("{zone=a} {rack=r2,zone=b}")
	eventually(t, "Nodes are watched again, for racks", func() bool { return watches(&w.meta.Fake) == 3 })
	w.updateNode(t, node("n2", "zone=b"))
	told("{zone=a}")
	w.updateNode(t, node("n2", "zone=b,rack=r3"))
	told("{zone=a} {rack=r3,zone=b}")
	w.removeNode(t, "n1")
	told("{rack=r3,zone=b}")
	w.removeCSINode(t, "n2")
	told("")
	if got := w.KeysOf("n2"); got != nil {
		t.Errorf("keys of n2 %v, want none", got)
	}
}
