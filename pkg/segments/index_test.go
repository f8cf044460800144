package segments

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

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
		got, err := x.Require(r)
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

func naiveFacts(r topology.Request, twin map[string]*topology.Member) topology.Facts {
	var f topology.Facts
	if r.SelectedNode != "" {
		f.Keys = twin[r.SelectedNode].Keys
		f.Node, _ = twin[r.SelectedNode].Segment()
	} else {
		counts := map[string]int{}
		best := ""
		for _, m := range twin {
			if len(m.Keys) == 0 {
				continue
			}
			counts[strings.Join(m.Keys, " ")]++
		}
		for id, n := range counts {
			if best == "" || n > counts[best] || n == counts[best] &&
				(len(strings.Fields(id)) < len(strings.Fields(best)) || len(strings.Fields(id)) == len(strings.Fields(best)) && id < best) {
				best = id
			}
		}
		f.Keys = strings.Fields(best)
	}
	var terms []topology.Segment
	for _, m := range twin {
		if s, ok := m.Labels.Project(f.Keys); ok && m.NodeExists && len(f.Keys) > 0 {
			terms = append(terms, s)
		}
	}
	f.Terms = topology.NewTerms(terms)
	return f
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
		got, err := x.Require(r)
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
		"a hint":                              {r: topology.Request{SelectedNode: "no", Hint: pairs("zone=x,rack=r")}, want: "{zone=x} {zone=a} {zone=b} {zone=c}"},
		"a hint, strict":                      {r: topology.Request{SelectedNode: "no", Strict: true, Hint: pairs("zone=x,rack=r")}, want: "{zone=x}"},
		"a hint for a Node that is gone":      {r: topology.Request{SelectedNode: "n4", Strict: true, Hint: pairs("zone=x")}, want: "{zone=x}"},
		"a hint of none of the driver's keys": {r: topology.Request{SelectedNode: "n4", Strict: true, Hint: pairs("rack=x")}, wantGone: true},
		"a hint is not needed":                {r: topology.Request{SelectedNode: "n1", Strict: true, Hint: pairs("zone=x")}, want: "{zone=a}"},
		"only late":                           {r: topology.Request{SelectedNode: "late"}, want: "{zone=d} {zone=a} {zone=b} {zone=c}"},
		"only late, strict":                   {r: topology.Request{SelectedNode: "late", Strict: true}, want: "{zone=d}"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := w.Require(tc.r)
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
	w.meta.PrependReactor("get", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("away")
	})
	if _, err := w.Require(topology.Request{SelectedNode: "n2"}); err == nil || errors.Is(err, topology.ErrNodeGone) || !apierrors.IsServiceUnavailable(err) {
		t.Errorf("error %v, want the server's", err)
	}
	before := gets(&w.client.Fake) + gets(&w.meta.Fake)
	if _, err := w.Require(topology.Request{SelectedNode: "n1"}); err != nil {
		t.Error(err)
	}
	if after := gets(&w.client.Fake) + gets(&w.meta.Fake); after != before {
		t.Errorf("%d requests for a node that is known", after-before)
	}
}

func TestRequireBeforeAndAfterRun(t *testing.T) {
	t.Parallel()
	x, err := New(Config{Driver: driver, Client: start(t, nil, nil).client, Metadata: start(t, nil, nil).meta})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []topology.Request{{SelectedNode: "n1"}, {ClaimName: "c", Immediate: true}} {
		if _, err := x.Require(r); err == nil || errors.Is(err, topology.ErrNodeGone) {
			t.Errorf("before Run: error %v, want one that is tried again", err)
		}
	}
	if got, err := x.Require(topology.Request{ClaimName: "c"}); got != nil || err != nil {
		t.Errorf("no requirement wanted: %v, %v", got, err)
	}
	ended, _, _ := fed(t)
	close(ended.ended)
	if _, err := ended.Require(topology.Request{SelectedNode: "n1"}); !errors.Is(err, errEnded) {
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
	if _, err := x.Require(topology.Request{ClaimName: "c", Immediate: true}); err == nil || !strings.Contains(err.Error(), "being read") {
		t.Errorf("error %v, want one that says that labels are being read", err)
	}
	x.nodeStore(x.widen()).replace([]any{node("n1", "zone=a,rack=r")})
	if got, err := x.Require(topology.Request{ClaimName: "c", Immediate: true}); err != nil || len(got.GetRequisite()) != 1 {
		t.Errorf("requirement %v, %v", got, err)
	}
}
